"""`pipeline_test`: feed rows to a declared pipeline, run it, and look at what became of them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.config import resolve_connection
from ematix_flow.decorators import StreamingPipeline
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.keywords import spec_from_keywords
from ematix_flow.ops.metrics import Metrics
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters, Which
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.change_tables import with_tables
from ematix_flow.streams.needs import jar_groups_of
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.session import session_for
from ematix_flow.testing.feeding import Line, lines, microseconds, moment, time_column
from ematix_flow.testing.offline import Row, database, inbox, offline, state
from ematix_flow.testing.reading import read_table
from ematix_flow.toml import load_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Declaration = str | os.PathLike[str] | StreamingPipeline | PipelineSpec | Mapping[str, Any]

# Any fixed time: a test that says nothing about time gives the same result every day.
_START = datetime(2000, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


@contextmanager
def pipeline_test(
    declared: Declaration,
    *,
    pipeline: str | None = None,
    lookups: Mapping[str, Sequence[Row]] | None = None,
    spark: SparkSession | None = None,
) -> Iterator[PipelineTest]:
    """A pipeline without its brokers and databases, in a folder that is gone afterwards.

    `declared` is a TOML file (`"orders.toml"`, or a path), a TOML text, a decorated pipeline, a spec, or a mapping of
    the keywords of `run_streaming_pipeline`. `pipeline` chooses one of several in a file. `lookups` replaces lookups by
    rows; the others are read where they are declared. `spark` is the session to run in; without it, the one of this
    process, which is started if there is none.
    """
    with tempfile.TemporaryDirectory(prefix="ematix-flow-test-") as folder:
        yield PipelineTest(_spec(declared, pipeline), Path(folder), lookups or {}, spark)


class PipelineTest:
    """A pipeline under test. Runs go on where the last one ended, as they do in production."""

    def __init__(
        self, spec: PipelineSpec, folder: Path, lookups: Mapping[str, Sequence[Row]], spark: SparkSession | None
    ) -> None:
        self.spec = spec
        """As declared."""
        self.result: RunResult | None = None
        """Of the latest run."""
        self._folder = folder
        self._offline = offline(spec, folder, lookups).with_connections(resolve_connection)
        self._spark = session_for(self._offline.spark, spark=spark, jar_groups=jar_groups_of(self._offline))
        self._metrics = Metrics(self._offline)
        self._times = [time_column(s, n) for s, n in zip(spec.sources, spec.source_names, strict=True)]
        self._clock = _START
        self._advanced: datetime | None = None
        self._feeds = 0

    def feed(
        self, rows: Iterable[Line] | Line, *, source: str | None = None, event_time: str | datetime | None = None
    ) -> None:
        """Let rows arrive: mappings, or text and bytes that stand for themselves, for example to be bad rows.

        `event_time` is when they happened, unless a row says so itself in the source's `event_time_column`. Without
        it, that is the time of the clock, which then moves on by a second.
        """
        number = _index("source", self.spec.source_names, source)
        column = self._times[number]
        happened = self._tick() if event_time is None else moment(event_time)
        self._feeds += 1
        # Files are read in order of their times; where rows have no time of their own, that of the file is theirs.
        arrived = happened if column is None else _START + self._feeds * _SECOND
        file = inbox(self._folder, number) / f"{self._feeds:08}.jsonl"
        file.write_bytes(lines(rows, {column.name: column.value(happened)} if column else {}))
        os.utime(file, ns=(microseconds(arrived) * 1000,) * 2)

    def advance_to(self, time: str | datetime) -> None:
        """Set the clock: rows that are fed from now on without an event time happen then, and a run that does not flush
        lets event time come that far, as a row of this time would."""
        to = moment(time)
        if to < self._clock:
            raise UsageError(
                f"the clock is at {self._clock.isoformat()} and never goes back to {to.isoformat()}",
                next_step="feed older rows with event_time=",
            )
        self._clock = self._advanced = to

    def run(self, *, flush: bool = True) -> RunResult:
        """Take in everything that was fed since the last run: in one batch, unless the pipeline limits its batches.

        Windows that are open at the end are closed, unless `flush` is False: then only those that event time, or the
        clock that was set, has passed.
        """
        try:
            self.result = run_spec(
                self._offline,
                bounded=True,
                flush=flush,
                clock=self._advanced,
                spark=self._spark,
                on_batch=self._metrics.batch,
            )
        except FlowError:
            self._metrics.failed()
            raise
        return self.result

    def rows(self, target: str | None = None) -> list[dict[str, Any]]:
        """What a target holds, in order of its columns from left to right; scd2: of key and `valid_from`. Where changes
        are of many tables, each is a target."""
        number = _index("target", with_tables(self.spec).target_names, target)
        file = database(self._folder, number % len(self.spec.targets))
        return read_table(with_tables(self._offline).targets[number], file) if file.exists() else []

    def dead_letters(self, stage: str | None = None) -> list[DeadLetter]:
        """The rows that were kept under `on_error = "dlq"`, oldest first, or those of one stage."""
        path = dead_letters_of(self.spec.name, str(state(self._folder)))
        if not path.exists():
            return []
        with closing(DeadLetters(path)) as letters:
            return list(letters.find(Which(stage=stage)))

    def late_rows(self) -> list[dict[str, Any]]:
        """The rows that came too late under `late_data = "dlq"`, as they arrived."""
        return [json.loads(letter.payload or b"{}") for letter in self.dead_letters("late")]

    def metric(self, name: str, **labels: str) -> float | None:
        """A metric over all runs, such as `metric("rows_written_total", target="orders")`; None if there is none."""
        return self._metrics.value(name, **labels)

    def _tick(self) -> datetime:
        self._clock += _SECOND
        return self._clock - _SECOND


def _spec(declared: Declaration, pipeline: str | None) -> PipelineSpec:
    match declared:
        case PipelineSpec():
            return declared
        case StreamingPipeline():
            return declared.spec
        case Mapping():
            return spec_from_keywords(**declared)
    is_text = isinstance(declared, str) and not declared.endswith(".toml")
    specs = load_toml(text=str(declared)) if is_text else load_toml(declared)
    chosen = [spec for spec in specs if pipeline in (None, spec.name)]
    if len(chosen) != 1:
        raise UsageError(
            f"declared are {', '.join(spec.name for spec in specs)}", next_step="name one of them with pipeline="
        )
    return chosen[0]


def _index(what: str, names: Sequence[str], wanted: str | None) -> int:
    if wanted in names:
        return names.index(wanted)
    if wanted is None and len(names) == 1:
        return 0
    found = f"there are several {what}s" if wanted is None else f"there is no {what} {wanted!r}"
    raise UsageError(found, next_step=f"name one with {what}=: {', '.join(names)}")
