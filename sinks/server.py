"""What database servers share as targets: executors copy rows into a table beside the target, over the network."""

from __future__ import annotations

from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import Staged, TargetUnavailable
from ematix_flow.sinks.copying import StagedTable
from ematix_flow.sinks.database import Database, DatabaseSink
from ematix_flow.sinks.tables import quoted


class ServerSink(DatabaseSink):
    """A table of a server."""

    def _located(self, db: Database) -> str:
        return self._qualified(self._ref.name)

    def _qualified(self, table: str) -> str:
        return f"{quoted(self._schema)}.{quoted(table)}"

    def _staged_rows(self, db: Database, staged: Staged, source: str) -> int:
        assert isinstance(staged, StagedTable)
        return staged.copied.rows

    def _failure(self, error: Exception) -> FlowError:
        if self._busy(error):
            return self._unavailable(self._words(error))
        return FlowError(
            f"{self.product} fails at table {self._ref.full_name} in {self._path}: {self._words(error)}",
            next_step="check user, password and database, and what the user may do; nothing of the batch was written",
        )

    def _unavailable(self, words: str) -> TargetUnavailable:
        return TargetUnavailable(
            f"{self.product} at {self._path} cannot take the batch now: {words}",
            next_step="see whether the server runs and can be reached; the batch is tried again",
        )
