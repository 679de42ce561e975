"""Where rows come from: a connection, what to read there, and how much at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from ematix_flow.model import Complaint, check
from ematix_flow.schema_text import schema_complaint
from ematix_flow.specs.fields import (
    DELTA_KINDS,
    FILE_KINDS,
    SQL_KINDS,
    Character,
    Flag,
    Name,
    Names,
    NotNegative,
    Positive,
)
from ematix_flow.specs.position import PositionText
from ematix_flow.specs.reading import Reading
from ematix_flow.specs.topics import topics_complaint

# What `query` names, for the kinds that have nothing to read without it.
_QUERY_MEANS = {
    "kafka": "a topic",
    "rabbitmq": "a queue",
    "pubsub": "a subscription",
    "redis": "a stream",
    **dict.fromkeys(SQL_KINDS, "a table or a SELECT"),
}


class Source(Reading):
    """One input of a pipeline."""

    __meant__: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("topic", "queue", "subscription", "stream", "table", "sql"), "query"
    )

    query: str = ""
    """What to read: a topic, a queue, a table or SELECT, or a folder or glob below the path of a file connection."""
    name: Name | None = None
    """Name of this source in SQL and joins; without it, the query."""
    schema: Name | None = None  # type: ignore[assignment]
    """Columns of the payload as Spark DDL, such as `id long, ts timestamp`; without it, inferred once and fixed."""
    event_time_column: Name | None = None
    """Column that becomes the event time `_event_ts`; without it, the record's or file's own time."""
    max_rows_per_batch: Positive | None = None
    """Most rows that one micro-batch takes from this source."""
    max_files_per_batch: Positive | None = None
    """Most files that one micro-batch takes from this source, oldest first."""
    on_data_loss: Literal["fail", "skip"] = "fail"
    """What to do when records of a Kafka topic are gone before they were read: fail, or go on without them."""
    start: PositionText | None = None
    """Where a pipeline without a checkpoint begins in Kafka: earliest, latest, a time, an offset, or `orders/0=5`."""
    change_feed: Flag = False
    """Read the change feed of a Delta table: rows that were changed or deleted after they had been read, too."""
    snapshot: Flag = False
    """Read all rows of a Delta table in each run, as they are then; without it, what was added since the last run."""
    incremental_column: Name | None = None
    """Column of a database table or query that only grows, such as a number or a time; only what is new is read."""
    keys: Names = ()
    """Columns that tell rows of the same incremental value apart; without them, the primary key of the table."""
    lookback: NotNegative | None = None
    """How far below the highest incremental value rows may still come: milliseconds of a time, as much of a number."""
    csv_delimiter: Character | None = None
    """Character between CSV fields; a comma without it."""
    csv_header: Flag | None = None
    """Whether CSV files begin with a line of column names; true without it."""
    csv_quote: Character | None = None
    """Character around CSV fields that contain the delimiter; a double quote without it."""
    csv_escape: Character | None = None
    """Character that escapes a quote inside a quoted CSV field."""
    csv_null_value: str | None = None
    """Text that stands for NULL in CSV files; an empty field without it."""

    @check
    def _schema_can_be_read(self) -> Iterator[Complaint]:
        complaint = schema_complaint(self.schema, "schema") if self.schema else None
        if complaint:
            yield complaint

    @check
    def _has_something_to_read(self) -> Iterator[Complaint]:
        meaning = _QUERY_MEANS.get(self.kind or "")
        if meaning and not self.query.strip():
            yield Complaint(("query",), f"missing; for {self.kind} it names {meaning}")
        elif self.kind == "kafka" and (complaint := topics_complaint(self.query)):
            yield complaint

    @check
    def _follows_a_column(self) -> Iterator[Complaint]:
        for option in ("incremental_column", "keys", "lookback"):
            if self.kind is not None and self.kind not in SQL_KINDS and getattr(self, option) not in (None, ()):
                yield Complaint((option,), f"has no meaning for {self.kind}, only for a database")
        for option in ("keys", "lookback"):
            if self.incremental_column is None and getattr(self, option) not in (None, ()):
                yield Complaint((option,), "needs an incremental_column")

    @check
    def _options_fit_the_kind(self) -> Iterator[Complaint]:
        if self.on_data_loss != "fail" and self.kind not in (None, "kafka"):
            yield Complaint(("on_data_loss",), f"has no meaning for {self.kind}, only for kafka")
        if self.start is not None and self.kind not in (None, "kafka"):
            yield Complaint(("start",), f"has no meaning for {self.kind}, only for kafka")
        for option in ("change_feed", "snapshot"):
            if getattr(self, option) and self.kind not in (None, *DELTA_KINDS):
                yield Complaint((option,), f"has no meaning for {self.kind}, only for delta_local")
        if self.snapshot and self.change_feed:
            yield Complaint(("snapshot",), "given together with change_feed", "one of the two")
        if self.kind is None or self.kind in FILE_KINDS:
            return
        for option in ("csv_delimiter", "csv_header", "csv_quote", "csv_escape", "csv_null_value"):
            if getattr(self, option) is not None:
                yield Complaint((option,), f"has no meaning for {self.kind}, only for files")
        if self.max_files_per_batch is not None and self.kind not in DELTA_KINDS:
            yield Complaint(("max_files_per_batch",), f"has no meaning for {self.kind}", "max_rows_per_batch")
