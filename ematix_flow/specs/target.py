"""Where rows go: a connection, the place in it, and how rows are applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, InstanceOf, model_validator
from pydantic.json_schema import SkipJsonSchema

from ematix_flow.durations import Duration
from ematix_flow.model import Complaint, Declared, check
from ematix_flow.problems import complain, near, shown
from ematix_flow.specs.fields import (
    BROKER_KINDS,
    DELTA_KINDS,
    FILE_KINDS,
    SQL_KINDS,
    Character,
    ConnectionRef,
    Flag,
    Name,
    Names,
    format_complaints,
    kind_of,
)
from ematix_flow.table import TableDefinition, resolve_merge_keys

_FORMAT_OPTIONS = ("parquet_compression", "csv_delimiter", "csv_header", "csv_quote", "csv_escape", "csv_null_value")
_TAKES: dict[str, tuple[str, ...]] = {
    "kafka": (
        "topic",
        "message_key_column",
        "headers_column",
        "partition_column",
        "topic_column",
        "schema_registration",
    ),
    "rabbitmq": ("queue", "exchange", "routing_key"),
    "pubsub": ("topic",),
    "kinesis": ("partition_key_prefix", "partition_key_column"),
    "redis": ("stream", "key_prefix"),
    **dict.fromkeys(FILE_KINDS, ("prefix", "partition_by", *_FORMAT_OPTIONS)),
    **dict.fromkeys(DELTA_KINDS, ("table", "primary_key", "partition_by")),
    **dict.fromkeys(SQL_KINDS, ("table", "primary_key")),
}
_PLACES = tuple(dict.fromkeys(place for places in _TAKES.values() for place in places))
_ONE_OF = {
    "kafka": ("topic", "topic_column"),
    "rabbitmq": ("queue", "exchange"),
    "pubsub": ("topic",),
    "redis": ("stream", "key_prefix"),
}


def takes(kind: str | None, key: str) -> bool:
    """Whether a key of a target has a meaning for a kind of connection."""
    return kind not in _TAKES or key not in _PLACES or key in _TAKES[kind]


class TableRef(Declared):
    """A table by name."""

    schema: str = ""  # type: ignore[assignment]
    """Schema or database of the table; without it, the default of the connection."""
    name: Name
    """Name of the table."""
    primary_key: Names = ()
    """Columns that identify a row."""
    definition: SkipJsonSchema[InstanceOf[TableDefinition] | None] = Field(default=None, exclude=True, repr=False)
    """The declared table, when it was given as a class; only in Python."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def _table(value: Any) -> Any:
    """A table as a class, `"name"`, `"schema.name"`, `("schema", "name")` or a mapping."""
    definition = getattr(value, "__table__", None)
    if isinstance(definition, TableDefinition):
        return {
            "schema": definition.schema,
            "name": definition.name,
            "primary_key": definition.primary_key,
            "definition": definition,
        }
    if isinstance(value, str):
        schema, _, name = value.rpartition(".")
        return {"schema": schema, "name": name}
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return {"schema": value[0], "name": value[1]}
    if isinstance(value, TableRef | Mapping):
        return value
    raise complain(f"found {shown(value)}", 'schema and name, such as ("analytics", "orders")')


def _mode(value: Any) -> Any:
    return "merge" if value == "scd1" else value


Mode = Annotated[Literal["append", "merge", "truncate", "scd2"], BeforeValidator(_mode)]


class Target(Declared):
    """One output of a pipeline."""

    __meant__: ClassVar[Mapping[str, str]] = {"schema": "table.schema", "name": "table.name", "strategy": "mode"}

    connection: ConnectionRef
    """Name of a declared connection, or the connection itself."""
    table: Annotated[TableRef, BeforeValidator(_table)] | None = None
    """Table of a database or Delta target."""
    topic: Name | None = None
    """Topic of a Kafka or Pub/Sub target."""
    queue: Name | None = None
    """Queue of a RabbitMQ target."""
    exchange: Name | None = None
    """Exchange of a RabbitMQ target, instead of a queue."""
    routing_key: str | None = None
    """Routing key of messages sent to the exchange."""
    stream: Name | None = None
    """Stream of a Redis target."""
    key_prefix: Name | None = None
    """Prefix of the keys of a Redis target, instead of a stream."""
    prefix: str | None = None
    """Folder below the path or bucket of a file target."""
    partition_by: Names = ()
    """Columns that become folders of a file or Delta target."""
    partition_key_prefix: str | None = None
    """Prefix of the partition keys of a Kinesis target."""
    partition_key_column: Name | None = None
    """Column with the partition key of a Kinesis target."""
    message_key_column: Name | None = None
    """Column with the key of a Kafka message."""
    headers_column: Name | None = None
    """Column with the headers of a Kafka message."""
    partition_column: Name | None = None
    """Column with the partition of a Kafka message."""
    topic_column: Name | None = None
    """Column with the topic of a Kafka message, for targets that write to several."""
    schema_registration: Literal["off", "check", "register"] | None = None
    """What a Kafka target may do in a schema registry: off, check its columns, or register them, also without it."""
    primary_key: Names = ()
    """Columns that identify a row; the same as `primary_key` of the table."""
    mode: Mode = "append"
    """How rows are applied: append, merge by key (alias scd1), truncate first, or scd2 history."""
    keys: Names = ()
    """Columns that merge and scd2 match on; without them, the primary key."""
    update_columns: Names = ()
    """The only columns that merge changes in a row that is there; without them, all but the keys."""
    compare_columns: Names = ()
    """The only columns by which merge and scd2 see that a row has changed; without them, all that could change."""
    handle_deletes: Literal["hard", "soft"] | None = None
    """What becomes of rows whose key a snapshot no longer has: gone, or `_is_deleted`; scd2 closes them either way."""
    ttl: Duration | None = None
    """How long scd2 keeps a version open whose key the source does not show: seconds, or such as "30d"."""
    on_drift: Literal["error", "evolve", "ignore"] = "error"
    """What to do when the rows no longer fit the table."""
    parquet_compression: Literal["uncompressed", "snappy", "gzip", "zstd"] | None = None
    """Compression of Parquet files; snappy without it."""
    csv_delimiter: Character | None = None
    """Character between CSV fields; a comma without it."""
    csv_header: Flag | None = None
    """Whether CSV files begin with a line of column names; true without it."""
    csv_quote: Character | None = None
    """Character around CSV fields that contain the delimiter; a double quote without it."""
    csv_escape: Character | None = None
    """Character that escapes a quote inside a quoted CSV field."""
    csv_null_value: str | None = None
    """Text written for NULL in CSV files; an empty field without it."""

    @property
    def kind(self) -> str | None:
        """Kind of the connection, or None while it is only known by name."""
        return kind_of(self.connection)

    @property
    def merge_keys(self) -> tuple[str, ...]:
        """What merge and scd2 match on: the given keys, else those of the declared table, else the primary key."""
        if self.keys:
            return self.keys
        if self.table is None:
            return self.primary_key
        if self.table.definition:
            return resolve_merge_keys(self.table.definition)
        return self.table.primary_key or self.primary_key

    @model_validator(mode="before")
    @classmethod
    def _one_primary_key(cls, data: Any) -> Any:
        """`primary_key` may stand beside the table or in it; both places hold it afterwards."""
        if not isinstance(data, Mapping) or data.get("table") is None:
            return data
        try:
            table = _table(data["table"])
        except ValueError:
            return data
        fields = (
            {name: getattr(table, name) for name in table.model_fields_set}
            if isinstance(table, TableRef)
            else dict(table)
        )
        key = data.get("primary_key") or fields.get("primary_key")
        if not key:
            return data
        return {**data, "table": {**fields, "primary_key": fields.get("primary_key") or key}, "primary_key": key}

    @check
    def _one_answer_to_what_identifies_a_row(self) -> Iterator[Complaint]:
        inside = self.table.primary_key if self.table else ()
        if inside and self.primary_key and inside != self.primary_key:
            found = f"found {', '.join(self.primary_key)}, but the table says {', '.join(inside)}"
            yield Complaint(("primary_key",), found, "the same columns, or only one of the two")

    @check
    def _keys_are_columns(self) -> Iterator[Complaint]:
        definition = self.table.definition if self.table else None
        for i, key in enumerate(self.keys if definition else ()):
            columns = definition.column_names if definition else ()
            if key not in columns:
                yield Complaint(
                    ("keys", i), f'found "{key}", which is no column', ", ".join(columns), near(key, columns)
                )

    @check
    def _merge_has_something_to_refine(self) -> Iterator[Complaint]:
        modes = {
            "update_columns": ("merge",),
            "compare_columns": ("merge", "scd2"),
            "handle_deletes": ("merge", "scd2"),
            "ttl": ("scd2",),
        }
        for option, fitting in modes.items():
            if getattr(self, option) and self.mode not in fitting:
                yield Complaint((option,), f'has no meaning for mode = "{self.mode}"', " or ".join(fitting))

    @check
    def _format_is_known(self) -> Iterator[Complaint]:
        yield from format_complaints(self.connection)

    @check
    def _has_a_place(self) -> Iterator[Complaint]:
        places = _ONE_OF.get(self.kind or "", ())
        if places and not any(getattr(self, place) for place in places):
            yield Complaint((places[0],), f"missing; {self.kind} needs {' or '.join(places)}")

    @check
    def _registers_what_has_schemas(self) -> Iterator[Complaint]:
        form = getattr(self.connection, "payload_format", None)
        if self.schema_registration is not None and form in ("json", "raw_bytes"):
            yield Complaint(
                ("schema_registration",), f'has no meaning for payload_format = "{form}"', "avro, protobuf, json_schema"
            )

    @check
    def _options_fit_the_kind(self) -> Iterator[Complaint]:
        if self.kind not in _TAKES:
            return
        for place in _PLACES:
            if not takes(self.kind, place) and getattr(self, place) not in (None, ()):
                yield Complaint((place,), f"has no meaning for {self.kind}", ", ".join(_TAKES[self.kind]))
        if self.mode != "append" and self.kind in BROKER_KINDS | FILE_KINDS:
            yield Complaint(("mode",), f'found "{self.mode}", which {self.kind} cannot do', "append")
