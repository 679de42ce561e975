"""The Delta table of a vault: which data files count, and one entry of its log for each change of that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.secrets import redact_text
from ematix_flow.state import durable
from ematix_flow.state.delta_files import PARTITIONS, DataFile, DataFiles, schema
from ematix_flow.state.vault import StateDamaged, StateStoreRefused, StateStoreUnavailable

if TYPE_CHECKING:
    from deltalake import DeltaTable

VERSION = 1
"""Of the columns and their meaning. A release that needs others changes them, and writes its own number."""
_VERSION_KEY = "ematix_flow.version"

# A handle gets slower with every entry that it has read since it was opened, and opening one with every entry since the
# last checkpoint of the log: 4 ms at twenty, 60 ms at four hundred.
_ENTRIES_PER_CHECKPOINT = 20
_ENTRIES_PER_CLEANING = 100

_SETTINGS = {
    _VERSION_KEY: str(VERSION),
    "delta.checkpointInterval": str(_ENTRIES_PER_CHECKPOINT),
    # Entries are read when they are new or not at all, and whoever looks for new ones lists all of them.
    "delta.logRetentionDuration": "interval 2 minutes",
    "delta.deletedFileRetentionDuration": "interval 2 minutes",
}
# Who was paused for so long may have lost its data file, or write its entry where cleaning made room and nobody looks.
_DOUBTFUL_SECONDS = 60

# The libraries tell what went wrong by words alone.
_REFUSALS = (
    "Permission denied", "PermissionDenied", "Not a directory", "NotADirectory", "Read-only file system",
    "Could not create local directory", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket",
)  # fmt: skip

_log = logging.getLogger(__name__)


class Overtaken(Exception):
    """Somebody else changed the table since it was looked at; what was planned may be wrong now."""


class PipelineTable(DataFiles):
    """What the table has of one pipeline, as it was when `look` was last called. One thread at a time, see `turn`."""

    def __init__(self, path: str, pipeline: str) -> None:
        super().__init__(path, pipeline)
        self._pipeline = pipeline
        self._lock = threading.RLock()
        self._table: DeltaTable | None = None
        self._opened_version = 0
        self._looked_at = 0.0
        self.place = f"Delta table {redact_text(self._path)}"

    @contextmanager
    def turn(self) -> Iterator[PipelineTable]:
        with self._lock, self.told():
            yield self

    @contextmanager
    def told(self) -> Iterator[None]:
        """What goes wrong, in words for a person."""
        import pyarrow as pa

        try:
            from deltalake.exceptions import DeltaError
        except ImportError:
            raise StateStoreRefused(
                "the Delta library is not installed", next_step="pip install 'ematix-flow-spark[delta]'"
            ) from None
        try:
            yield
        except (OSError, DeltaError, pa.ArrowException) as error:
            self._table = None
            raise self._failure(error) from error

    def look(self) -> bool:
        """False if there is no table."""
        from deltalake.exceptions import TableNotFoundError

        self._looked_at = time.time()
        if self._table is not None:
            self._table.update_incremental()
            if self._table.version() < self._opened_version + _ENTRIES_PER_CHECKPOINT:
                return True
        try:
            self._open()
        except TableNotFoundError as error:
            if any(words in str(error) for words in _REFUSALS):
                raise
            return False
        return True

    def create(self) -> None:
        """Others who do so at the same time create the same."""
        from deltalake import DeltaTable

        if self._local:
            durable.make(self._local)
        DeltaTable.create(
            self._path,
            schema(whole=True),
            mode="ignore",
            partition_by=list(PARTITIONS),
            configuration=_SETTINGS,
            raise_if_key_not_exists=False,
        )
        self._open()
        self._flush_log(0)
        if self._local:
            durable.sync(self._local)

    def number(self, app: str) -> int:
        """That of the last change under this name; 0 before the first one."""
        return self._seen.transaction_version(app) or 0

    def all(self) -> list[DataFile]:
        import pyarrow as pa

        table = pa.table(self._seen.get_add_actions(flatten=True))
        names = ("path", "size_bytes", *(f"partition.{name}" for name in PARTITIONS))
        found = zip(*(table[name].to_pylist() for name in names), strict=True)
        return [DataFile(path, size, generation) for path, size, of, generation in found if of == self._pipeline]

    def commit(self, app: str, number: int, add: Iterable[DataFile] = (), remove: Iterable[DataFile] = ()) -> None:
        """Raises `Overtaken`, and changes nothing, if there was a change under the same name since `look`; now and then
        also because of other names."""
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction, RemoveAction

        self._not_in_doubt()
        now, before = time.time_ns() // 1_000_000, self._seen.version()
        adding = [AddAction(file.path, file.size, self._partition(file), now, True, "{}") for file in add]
        removing = [RemoveAction(file.path, True, now, file.size, self._partition(file)) for file in remove]
        try:
            self._seen.create_write_transaction(
                [*adding, *removing],
                "append",
                schema(whole=True),
                list(PARTITIONS),
                commit_properties=CommitProperties(app_transactions=[Transaction(app, number)]),
                # Not before what they write is flushed, see `_tidy`.
                post_commithook_properties=PostCommitHookProperties(False, False),
            )
        except CommitFailedError as error:
            raise Overtaken from error
        except DeltaError as error:
            # The entries since `look` are no longer there to be compared with.
            if "Invalid table version" not in str(error):
                raise
            self._table = None
            raise Overtaken from error
        self._not_in_doubt()
        newest = self._flush_log(before + 1)
        if newest // _ENTRIES_PER_CHECKPOINT > before // _ENTRIES_PER_CHECKPOINT:
            self._tidy(cleaning=newest // _ENTRIES_PER_CLEANING > before // _ENTRIES_PER_CLEANING)

    def close(self) -> None:
        with self._lock:
            self._table = None

    @property
    def _seen(self) -> DeltaTable:
        assert self._table is not None, "look first"
        return self._table

    def _partition(self, file: DataFile) -> dict[str, str | None]:
        return {"pipeline": self._pipeline, "generation": file.generation}

    def _not_in_doubt(self) -> None:
        if abs(time.time() - self._looked_at) > _DOUBTFUL_SECONDS:
            self._table = None
            raise Overtaken

    def _open(self) -> None:
        from deltalake import DeltaTable

        self._table = None
        table = DeltaTable(self._path)
        version = table.metadata().configuration.get(_VERSION_KEY)
        if version != str(VERSION):
            raise StateStoreRefused(
                f"{self.place} has version {version or 'unknown'}, this release needs {VERSION}",
                next_step="use the release that made it, or another path",
            )
        self._table, self._opened_version = table, table.version()

    def _flush_log(self, first: int) -> int:
        """The library leaves it to the system when an entry reaches the disk. Without this, a power cut could take back
        a save of which targets show the rows already. Gives the newest version, as far as known."""
        if self._local is None:
            return first
        log, version = self._local / "_delta_log", first
        # Those of others in between, too: without them ours is of no use.
        while (entry := log / f"{version:020d}.json").exists():
            durable.sync(entry)
            version += 1
        durable.sync(log)
        return version - 1

    def _tidy(self, *, cleaning: bool) -> None:
        """Keep the log short. The entry that was written stands; what fails here is done another time."""
        from deltalake.exceptions import DeltaError

        try:
            self._open()
            self._seen.create_checkpoint()
            if self._local:
                log = self._local / "_delta_log"
                for name in (f"{self._seen.version():020d}.checkpoint.parquet", "_last_checkpoint", ""):
                    durable.sync(log / name)
            if cleaning:
                self._seen.cleanup_metadata()
        except (OSError, DeltaError) as error:
            _log.warning("log of the state store not tidied", extra={"reason": redact_text(str(error))})
        self._table = None

    def _failure(self, error: Any) -> FlowError:
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        words = redact_text((str(error).strip() or type(error).__name__).replace("\n", " "))
        if any(refusal in str(error) for refusal in _REFUSALS):
            return StateStoreRefused(
                f"{self.place} does not accept the pipeline: {words}",
                next_step="check `path` of the state store and who may write there",
            )
        if isinstance(error, pa.ArrowInvalid | FileNotFoundError | DeltaError):
            return StateDamaged(
                f"{self.place} cannot be read: {words}",
                next_step="put back a backup of the state store. If only a checkpoint in its `_delta_log` is damaged, "
                "as after a power cut, remove that file and `_last_checkpoint`: the entries beside it say the same",
            )
        return StateStoreUnavailable(
            f"{self.place} cannot be reached: {words}",
            next_step="nothing of the batch is visible; it is tried again when the storage is back",
        )
