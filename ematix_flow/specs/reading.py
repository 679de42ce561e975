"""What a source and a lookup share: the connection that rows are read from, and the format of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ematix_flow.model import Complaint, Declared, check
from ematix_flow.specs.fields import ConnectionRef, format_complaints, kind_of, with_format


class Reading(Declared):
    connection: ConnectionRef
    """Name of a declared connection, or the connection itself."""

    @property
    def kind(self) -> str | None:
        """Kind of the connection, or None while it is only known by name."""
        return kind_of(self.connection)

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return with_format(given)

    @check
    def _format_is_known(self) -> Iterator[Complaint]:
        yield from format_complaints(self.connection)
