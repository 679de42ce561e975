"""What every source is: rows with an envelope, and a call that tells it which of them are safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from ematix_flow.errors import FlowError
from ematix_flow.specs.position import Position
from ematix_flow.streams.envelope import Carried, Origin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class StreamSource(Protocol):
    replayable: ClassVar[bool]
    """A batch that is planned again reads the same rows; of a snapshot, those that are there then."""
    ranged: ClassVar[bool]
    """It can be read from one place to another: it is `Ranged`."""
    payload_format: str
    """What the original bytes of a row are, for its dead letter."""
    payload_schema: StructType
    """The columns of the payload, fixed at the first start."""

    origin: Origin
    """What an error of any of its rows must tell."""
    exact_positions: bool
    """No two rows share a position."""

    def read(self, session: SparkSession, carried: Carried) -> DataFrame:
        """The endless table of this source, every row in its envelope."""

    def reason(self, payload: bytes) -> str:
        """Why these bytes could not be decoded, for a person."""

    def place(self, position: str, payload: bytes) -> str:
        """Where a bad row is, for a person."""

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        """The numbers of the lines of a file that are these payloads. Only asked where positions are not exact; empty
        where there are no lines."""

    def arrived(self, position: str) -> datetime | None:
        """When a row without an event time of its own came in."""

    def release(self, batch: int) -> None:
        """Step 7: everything up to this batch is durable in every target, so the source may forget it."""


@runtime_checkable
class Ranged(Protocol):
    """A source that can be read from one place to another."""

    def end_before(self, position: Position) -> None:
        """Read nothing from there on."""

    def is_over(self, batch: int) -> bool:
        """Whether nothing of the range comes after a batch that is planned."""


@runtime_checkable
class CountsAhead(Protocol):
    """A source that knows how many rows a batch has before they are read."""

    def rows_of(self, batch: int) -> int | None:
        """Of a batch that is planned; None if it does not know after all."""


@runtime_checkable
class TakesAll(Protocol):
    """A source that knows whether its batches are limited."""

    @property
    def takes_all(self) -> bool:
        """The first batch that a bounded run plans has all that there was for it when the run began."""


@runtime_checkable
class KeepsLines(Protocol):
    """A source whose rows do not carry their original bytes, and which can look for them."""

    def originals(self, read: Mapping[str, bytes]) -> dict[str, tuple[bytes, str]]:
        """Positions of rows with what was read there -> their original bytes, and the format of these."""


class SourceNotFound(FlowError):
    """The place that a source names does not exist."""

    code = "source-not-found"


class NoColumns(FlowError):
    """No schema is declared and the input shows none."""

    code = "no-columns"


class NothingToInfer(FlowError):
    """No schema is declared and there is no input yet to infer it from."""

    code = "nothing-to-infer"
    transient = True
