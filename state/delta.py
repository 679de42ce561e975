"""A vault in a Delta table: rows are only ever added, and a change counts if nobody else made one first.

Every save and every change of the lease carries a number under the pipeline's name. The table takes the next number
from one process only, so that whoever has lost the lease cannot save, however long it was paused in between.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from ematix_flow.errors import FlowError
from ematix_flow.secrets import redact_text
from ematix_flow.state import delta_contents
from ematix_flow.state.delta_contents import LEASE, SHELVES, SMALL_BYTES, contents_of, joined
from ematix_flow.state.delta_files import DataFile, Row
from ematix_flow.state.delta_table import Overtaken, PipelineTable
from ematix_flow.state.holder import Holder
from ematix_flow.state.home import file_name
from ematix_flow.state.vault import Held, Leased, LeaseLost, StateStoreUnavailable

if TYPE_CHECKING:
    from ematix_flow.state.delta_letters import DeltaDeadLetters

R = TypeVar("R")

SMALL_FILES = 100
"""So many data files are made into one by the process that saves. Each costs a start about a millisecond."""
_ATTEMPTS = 20

_log = logging.getLogger(__name__)


class DeltaVault:
    """Saves and heartbeats look at the table apart, so that a long save does not look like silence."""

    def __init__(self, pipeline: str, path: str) -> None:
        self._pipeline, self._path = pipeline, path.rstrip("/")
        self._app = f"ematix-flow/{quote(pipeline, safe='')}"
        self._saves = PipelineTable(f"{self._path}/files", pipeline)
        self._beats = PipelineTable(f"{self._path}/files", pipeline)
        self._beat, self._beat_file = 0, f"_leases/{file_name(pipeline)}.json"
        # A token, and the last number at which it was found to hold the lease.
        self._held = (0, 0)
        self._small_files = 0
        self.place = f"Delta at {redact_text(self._path)}"

    def latest(self) -> Held | None:
        with self._saves.turn() as files:
            found = contents_of(files) if files.look() else None
            return found.held() if found else None

    def read(self, generation: str, paths: Collection[str]) -> Iterator[tuple[str, bytes]]:
        with self._saves.turn() as files:
            found = contents_of(files, generation) if files.look() else None
        if found is None:
            return
        # Without a turn: data files never change, and stay for a while after they are forgotten.
        with files.told():
            for file in found.rows:
                yield from joined(files.contents(file, lambda row: row.path in paths and found.is_live(row)))

    def save(
        self, generation: str, batch: int | None, put: Mapping[str, Path], gone: Collection[str], token: int
    ) -> int:
        written: DataFile | None = None
        with self._saves.turn() as files:
            for _ in range(_ATTEMPTS):
                # The content first, because it may take long; then a look; then the entry that makes it count.
                if written is None or written.save != self._held[1] + 1:
                    number = self._held[1] + 1
                    written = files.write(generation, number, delta_contents.rows_of_save(number, batch, put, gone))
                if not files.look() or not self._holds(files, token):
                    raise LeaseLost(self._pipeline, self.lease())
                if written.save == self._held[1] + 1:
                    with suppress(Overtaken):
                        files.commit(self._app, written.save, [written])
                        self._held = (token, written.save)
                        break
            else:
                raise self._crowded()
        self._small_files += 1
        if self._small_files >= SMALL_FILES:
            self._compact_in_passing()
        return written.save

    def lease(self) -> Leased | None:
        with self._beats.turn() as files:
            return self._leased(files) if files.look() else None

    def take(self, holder: Holder, instead_of: Leased | None) -> int | None:
        with self._beats.turn() as files:
            if not files.look():
                files.create()
            now = self._leased(files)
            if (now and (now.token, now.beat)) != (instead_of and (instead_of.token, instead_of.beat)):
                return None
            token = files.number(self._app) + 1
            lease = files.write(LEASE, token, [Row(LEASE, token, content=holder.as_text().encode())])
            try:
                files.commit(self._app, token, [lease], _of(files, LEASE))
            except Overtaken:
                return None
            self._held = (token, token)
            files.look()
            self._small_files = sum(file.size < SMALL_BYTES for file in delta_contents.checkpoints(files))
            self._write_beat(files, token)
            return token

    def beat(self, token: int) -> bool:
        with self._beats.turn() as files:
            if not files.look() or not self._holds(files, token):
                return False
            self._write_beat(files, token)
            return True

    def mine(self, token: int) -> bool:
        with self._saves.turn() as files:
            return files.look() and self._holds(files, token)

    def leave(self, token: int) -> None:
        with self._beats.turn() as files:

            def give_back() -> None:
                if files.look() and self._holds(files, token):
                    files.commit(self._app, files.number(self._app) + 1, remove=_of(files, LEASE))

            self._until_done(give_back)

    def dead_letters(self, generation: str) -> DeltaDeadLetters:
        from ematix_flow.state.delta_letters import DeltaDeadLetters

        return DeltaDeadLetters(f"{self._path}/dead_letters", self._pipeline, generation)

    def shelf(self, name: str) -> dict[str, bytes]:
        with self._beats.turn() as files:
            return _on_shelf(files, SHELVES + name) if files.look() else {}

    def put_on_shelf(self, name: str, put: Mapping[str, bytes], gone: Collection[str] = ()) -> None:
        """Few and small documents: one data file holds them all, and each change replaces it."""
        shelf, app = SHELVES + name, f"{self._app}/{SHELVES}{name}"
        with self._beats.turn() as files:

            def replace_all() -> None:
                if not files.look():
                    files.create()
                number, documents = files.number(app) + 1, {**_on_shelf(files, shelf), **put}
                rows = (
                    row
                    for path in documents.keys() - set(gone)
                    for row in delta_contents.rows_of_file(number, path, documents[path])
                )
                files.commit(app, number, [files.write(shelf, number, rows)], _of(files, shelf))

            self._until_done(replace_all)

    def compact(self) -> int:
        return self._compact(forget_older=True)

    def close(self) -> None:
        self._saves.close()
        self._beats.close()

    def _compact(self, forget_older: bool) -> int:
        """What saves of others add meanwhile is newer than all that is written again here, and stays beside it."""
        with self._saves.turn() as files:
            found = contents_of(files) if files.look() else None
            if found is None:
                return 0
            unused = files.unused(files.all())
            old, new = delta_contents.rewritten(files, found)
            if forget_older:
                old += [file for file in delta_contents.checkpoints(files) if file.generation != found.generation]

            def replace_old() -> bool:
                if not files.look() or not set(old) <= set(files.all()):
                    # Another process was faster.
                    return False
                number = files.number(self._app) + 1
                files.commit(self._app, number, new, old)
                if self._held[1] == number - 1:
                    self._held = (self._held[0], number)
                return True

            if not old or not self._until_done(replace_old):
                return 0
            # Not those of just now, which somebody may be reading; and only with an entry of the log under our name,
            # because a save that was paused in the middle then notices that its data file may be gone.
            files.delete(unused)
            return sum(file.size for file in old) - sum(file.size for file in new)

    def _compact_in_passing(self) -> None:
        self._small_files = 1
        try:
            self._compact(forget_older=False)
        except FlowError as error:
            # The save is safe; this is tried again after as many more.
            _log.warning("state store not compacted", extra={"pipeline": self._pipeline, "reason": error.found})

    def _holds(self, files: PipelineTable, token: int) -> bool:
        """By the number alone, unless another process made a change; most often nobody did."""
        number = files.number(self._app)
        if self._held != (token, number):
            if [file.save for file in _of(files, LEASE)] != [token]:
                return False
            # The heartbeat may have looked before the save that is in it already.
            self._held = max(self._held, (token, number))
        return True

    def _until_done(self, change: Callable[[], R]) -> R:
        for _ in range(_ATTEMPTS):
            with suppress(Overtaken):
                return change()
        raise self._crowded()

    def _crowded(self) -> StateStoreUnavailable:
        return StateStoreUnavailable(
            f"{self.place} is changed by others all the time",
            next_step="nothing of the batch is visible, and it is tried again; if this happens often, give pipelines "
            "tables of their own",
        )

    def _leased(self, files: PipelineTable) -> Leased | None:
        for file in _of(files, LEASE):
            for row in files.contents(file):
                return Leased(Holder.from_text(row.content.decode()), row.save, *self._read_beat(files, row.save))
        return None

    def _read_beat(self, files: PipelineTable, token: int) -> tuple[int, float]:
        """Its number, and the seconds since. The holder may not have come to its first one, or write one right now."""
        with suppress(FileNotFoundError, ValueError):
            content, silent = files.read_beside(self._beat_file)
            beat = json.loads(content)
            if beat["token"] == token:
                return beat["beat"], silent
        return 0, 0.0

    def _write_beat(self, files: PipelineTable, token: int) -> None:
        """Beside the table, which would grow by thousands of entries a day."""
        self._beat += 1
        files.write_beside(self._beat_file, json.dumps({"token": token, "beat": self._beat}).encode())


def _of(files: PipelineTable, generation: str) -> list[DataFile]:
    return [file for file in files.all() if file.generation == generation]


def _on_shelf(files: PipelineTable, shelf: str) -> dict[str, bytes]:
    return dict(pair for file in _of(files, shelf) for pair in joined(files.contents(file)))
