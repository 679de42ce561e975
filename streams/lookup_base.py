"""What every kind of lookup is: rows somewhere else that can be copied as they are now."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.specs import Lookup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LookupFailed(FlowError):
    """A lookup cannot be read as it is declared."""

    code = "lookup-failed"


class LookupBusy(LookupFailed):
    """Somebody else holds what a lookup reads, or its server does not answer; that passes."""

    code = "lookup-busy"
    transient = True


@dataclass(frozen=True)
class Origin(ABC):
    """Where the rows of a lookup come from."""

    name: str
    lookup: Lookup
    connection: Any
    session: SparkSession

    def state(self) -> str | None:
        """A text that changes whenever the rows may have changed, or None if only reading them tells."""
        return None

    @abstractmethod
    def copy(self, folder: Path) -> None:
        """Write all rows as Parquet files into a folder that does not exist yet."""

    def failed(self, found: str, next_step: str, kind: type[LookupFailed] = LookupFailed) -> LookupFailed:
        return kind(f"lookup {self.name!r}: {found}", next_step=next_step)
