"""What a pipeline keeps and how it tells time: state store, watermark and Spark settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from ematix_flow.model import Complaint, Declared, check
from ematix_flow.specs.fields import Name, NotNegative, Positive

_NEEDS = {"local": "", "postgres": "url", "delta": "path", "in_memory": ""}


class StateStore(Declared):
    """Where checkpoints, operator state and dead letters are kept."""

    kind: Literal["local", "postgres", "delta", "in_memory"] = "local"
    """A folder of this machine, a Postgres database, a Delta table, or memory that ends with the process."""
    url: Name | None = Field(default=None, repr=False)
    """URL of the Postgres database."""
    path: Name | None = None
    """Path of the Delta table."""
    schema: Name = "public"  # type: ignore[assignment]
    """Schema of the Postgres tables."""
    checkpoint_interval_ms: Positive = 60_000
    """Longest time between two saves of a pipeline without state."""

    @check
    def _place_fits_the_kind(self) -> Iterator[Complaint]:
        for key in ("url", "path"):
            value, needed = getattr(self, key), _NEEDS[self.kind] == key
            if needed and value is None:
                yield Complaint((key,), f'missing; kind = "{self.kind}" needs {key}')
            if value is not None and not needed:
                kind = "postgres" if key == "url" else "delta"
                yield Complaint((key,), f'has no meaning with kind = "{self.kind}", only with "{kind}"')


class Watermark(Declared):
    """How far event time has come."""

    lateness_ms: NotNegative = 0
    """How long to wait for rows that are out of order."""
    source_idleness_ms: Positive = 60_000
    """After this silence a source no longer holds the watermark back."""


def _as_spark_writes_it(value: Any) -> Any:
    """Spark properties are texts; `8` and `true` are as clear as `"8"` and `"true"`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


_Property = Annotated[
    str,
    BeforeValidator(_as_spark_writes_it),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]


class SparkSettings(Declared):
    """How the Spark session is made."""

    master: Name | None = None
    """Spark master, such as `local[*]` or a cluster's address; without it, all cores of this machine."""
    conf: dict[str, _Property] = Field(default_factory=dict)
    """Any Spark property, such as `"spark.sql.shuffle.partitions" = "8"`."""
