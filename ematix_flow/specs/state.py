"""What a pipeline keeps and how it tells time: state store, watermark and Spark settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ematix_flow.connections.base import Property
from ematix_flow.model import Complaint, Declared, check
from ematix_flow.secrets import Discreet
from ematix_flow.specs.fields import Name, NotNegativeMs, Positive, PositiveMs

_NEEDS = {"postgres": "url", "delta": "path"}
_TAKES = {**_NEEDS, "local": "path"}


class StateStore(Discreet):
    """Where checkpoints, operator state and dead letters are kept."""

    kind: Literal["local", "postgres", "delta", "in_memory"] = "local"
    """A folder of this machine, a Postgres database, a Delta table, or memory that ends with the process."""
    url: Name | None = None
    """URL of the Postgres database."""
    path: Name | None = None
    """Path of the Delta table; or the folder of a local store, without it `$EMATIX_FLOW_HOME/state`."""
    schema: Name = "public"  # type: ignore[assignment]
    """Schema of the Postgres tables."""
    checkpoint_interval_ms: PositiveMs = 60_000
    """How often a save also brings pictures of the whole operator state, and forgets what is no longer needed. What a
    batch plans and changes is saved with every batch."""

    @check
    def _place_fits_the_kind(self) -> Iterator[Complaint]:
        for key in ("url", "path"):
            value = getattr(self, key)
            if value is None and _NEEDS.get(self.kind) == key:
                yield Complaint((key,), f'missing; kind = "{self.kind}" needs {key}')
            if (
                key == "url"
                and value
                and "://" in value
                and not value.startswith(("postgres://", "postgresql://", "${"))
            ):
                yield Complaint(
                    (key,), "is not the URL of a Postgres database; write postgresql://user:password@host/database"
                )
            if value is not None and _TAKES.get(self.kind) != key:
                kinds = " or ".join(f'"{kind}"' for kind, taken in _TAKES.items() if taken == key)
                yield Complaint((key,), f'has no meaning with kind = "{self.kind}", only with {kinds}')


class Watermark(Declared):
    """How far event time has come."""

    lateness_ms: NotNegativeMs = 0
    """How long to wait for rows that are out of order."""
    source_idleness_ms: PositiveMs = 60_000
    """After this silence a source no longer holds the watermark back."""


class SparkSettings(Discreet):
    """How the Spark session is made."""

    master: Name | None = None
    """Spark master, such as `local[*]` or a cluster's address; without it, all cores of this machine."""
    conf: dict[str, Property] = Field(default_factory=dict)
    """Any Spark property, such as `"spark.sql.shuffle.partitions" = "8"`."""
    state_buckets: Positive | None = None
    """Parts that the state of a window or join is divided into, fixed at the first start; 8, or two for each core."""
