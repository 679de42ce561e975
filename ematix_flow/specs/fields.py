"""The field types that several declarations share: numbers with limits, names, and the reference to a connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    ValidationError,
    WithJsonSchema,
)

from ematix_flow.connections import (
    CONNECTION_KINDS,
    Connection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    format_from_path,
)
from ematix_flow.connections.lakes import FileFormatName
from ematix_flow.model import Complaint
from ematix_flow.problems import complain, near, shown

Positive = Annotated[int, Field(strict=True, ge=1)]
NotNegative = Annotated[int, Field(strict=True, ge=0)]
Whole = Annotated[int, Field(strict=True)]
Flag = StrictBool
Name = Annotated[str, Field(min_length=1)]
Names = tuple[Name, ...]
T = TypeVar("T")

# Ten thousand years: longer than the calendar, and what is added to a time still fits into 64 bits.
_LONGEST_MS = 315_576_000_000_000


def _within_the_calendar(value: int) -> int:
    if abs(value) > _LONGEST_MS:
        raise complain(f"found {value}, which is longer than the calendar", f"at most {_LONGEST_MS}")
    return value


PositiveMs = Annotated[Positive, AfterValidator(_within_the_calendar)]
NotNegativeMs = Annotated[NotNegative, AfterValidator(_within_the_calendar)]
WholeMs = Annotated[Whole, AfterValidator(_within_the_calendar)]


def _not_alone(value: Any) -> Any:
    """Pydantic would take one model for the list of its fields."""
    if isinstance(value, BaseModel):
        one = type(value).__name__
        raise complain(f"found a single {one}", f"a list, such as [{one}(...)]")
    return value


Several = Annotated[tuple[T, ...], BeforeValidator(_not_alone)]
"""A list of declarations."""
Character = Annotated[str, Field(min_length=1, max_length=1)]

SQL_KINDS = frozenset({"postgres", "mysql", "sqlite", "duckdb", "snowflake", "bigquery", "redshift"})
DELTA_KINDS = frozenset({"delta_local", "delta_s3"})
FILE_KINDS = frozenset({"object_store_local", "object_store_s3"})
BROKER_KINDS = frozenset({"kafka", "rabbitmq", "pubsub", "kinesis", "redis"})
_FileConnection = ObjectStoreLocalConnection | ObjectStoreS3Connection
REGISTRY_KINDS = frozenset({"schema_registry", "glue_schema_registry"})


def data_kinds() -> list[str]:
    """The kinds of connection that rows can come from or go to, in the order of their registration."""
    return [kind for kind in CONNECTION_KINDS if kind not in REGISTRY_KINDS]


def kind_of(connection: str | Connection) -> str | None:
    """The kind, or None for a connection that is only known by its name until the pipeline starts."""
    return None if isinstance(connection, str) else connection.kind


def _connection(value: Any) -> Any:
    if isinstance(value, str):
        if not value:
            raise complain("found an empty text", "the name of a connection")
        if "://" in value:  # not shown: it may hold a password
            raise complain("found a URL", "a connection, such as PostgresConnection(url=...), or the name of one")
        return value
    if isinstance(value, Connection):
        if value.kind in REGISTRY_KINDS:
            raise complain(f"found a {type(value).__name__}", "a connection that holds rows")
        return value
    if isinstance(value, Mapping):
        return _inline(value)
    raise complain(f"found {shown(value)}", "a connection, or the name of one")


def _inline(fields: Mapping[str, Any]) -> Connection:
    """A connection written out where it is used. Its own errors keep their place below this one."""
    kind = fields.get("kind")
    if kind not in data_kinds():
        guess = near(kind, data_kinds()) if isinstance(kind, str) else ""
        found = "missing" if kind is None else f"found {shown(kind)}"
        problem = complain(found, ", ".join(data_kinds()), guess)
        raise ValidationError.from_exception_data("connection", [{"type": problem, "loc": ("kind",), "input": kind}])
    return CONNECTION_KINDS[str(kind)].model_validate(dict(fields))


def with_format(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A connection to files that does not know its format has the one that the suffix of the query names."""
    connection, guessed = given.get("connection"), format_from_path(str(given.get("query") or ""))
    if guessed is None:
        return given
    if isinstance(connection, _FileConnection) and connection.format is None:
        return {**given, "connection": connection.model_copy(update={"format": guessed})}
    if isinstance(connection, Mapping) and connection.get("kind") in FILE_KINDS and not connection.get("format"):
        by_path = format_from_path(str(connection.get("path", "")))
        return {**given, "connection": {**connection, "format": by_path or guessed}}
    return given


def format_complaints(connection: str | Connection) -> Iterator[Complaint]:
    """Whoever reads or writes files has to know their format."""
    if isinstance(connection, _FileConnection) and connection.format is None:
        path = getattr(connection, "path", None)
        nowhere = f'the path "{path}" has no suffix' if path else "there is no suffix"
        found = f"missing, and {nowhere} to guess it from"
        yield Complaint(("connection", "format"), found, ", ".join(get_args(FileFormatName)))


ConnectionRef = Annotated[
    str | Connection,
    PlainValidator(_connection),
    PlainSerializer(lambda value: value if isinstance(value, str) else value.model_dump()),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""The name of a connection, or the connection itself."""
