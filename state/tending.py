"""What a person does to the state of a pipeline that does not run: bring a disk up, begin anew, give room back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.errors import UsageError
from ematix_flow.state import durable, mirror
from ematix_flow.state.checkpoint import changed, files_in
from ematix_flow.state.keeping import KEPT_NOTE
from ematix_flow.state.lease import Lease
from ematix_flow.state.lock import SingleWriter
from ematix_flow.state.memory import Memory
from ematix_flow.state.rewinding import begin
from ematix_flow.state.swap import NEW, settle, swap


@dataclass(frozen=True)
class Restored:
    """What a restore did to the disk."""

    written: int
    removed: int


class Resting:
    """A pipeline that nobody runs. In contrast to a store, it may be opened where disk and state store disagree."""

    def __init__(self, memory: Memory, token: int) -> None:
        self._memory, self._token = memory, token
        self._checkpoint, self._note = memory.folder / "checkpoint", memory.folder / KEPT_NOTE

    def restore(self) -> Restored:
        """Make the folder an exact image of the state store."""
        vault = self._memory.vault
        held = vault.latest() if vault else None
        if vault is None or held is None:
            raise nothing_to_restore(self._memory)
        before = files_in(self._checkpoint)
        durable.make(self._checkpoint)
        mirror.restored(self._checkpoint, self._note, vault, held)
        now = files_in(self._checkpoint)
        return Restored(len(changed(now, before)), len(before.keys() - now.keys()))

    def begin_anew(self) -> None:
        """An empty checkpoint of a new generation. Works whatever became of the old one."""
        new = self._memory.folder / NEW
        generation, number = begin(new), 0
        if self._memory.vault is not None:
            files = {path: new / path for path in files_in(new)}
            number = self._memory.vault.save(generation, None, files, (), self._token)
        durable.make(self._checkpoint)
        swap(self._memory.folder)
        if number:
            mirror.Note(generation, number).write(self._note)


@contextmanager
def at_rest(pipeline: str, memory: Memory) -> Iterator[Resting]:
    """With the lock and the lease in hand, so that nobody starts it meanwhile."""
    durable.make(memory.folder)
    writer = SingleWriter(pipeline, memory.folder)
    try:
        settle(memory.folder)
        lease = Lease(pipeline, memory.vault) if memory.vault else None
        try:
            yield Resting(memory, lease.token if lease else 0)
        finally:
            if lease:
                lease.release()
    finally:
        writer.release()


def compact(pipeline: str, memory: Memory) -> int:
    """Give back the room of what nobody needs; in bytes. A vault does it beside a running pipeline."""
    if memory.vault is not None:
        return memory.vault.compact()
    if not memory.folder.exists():
        return 0
    before = _size(memory.folder)
    with at_rest(pipeline, memory):
        shutil.rmtree(memory.folder / "staging", ignore_errors=True)
    return before - _size(memory.folder)


def nothing_to_restore(memory: Memory) -> UsageError:
    if memory.vault is None:
        return UsageError(
            f"the state is in {memory.folder} and nowhere else, so that there is nothing to restore it from",
            next_step='keep it outside the machine with [state_store] kind = "postgres" or "delta"',
        )
    return UsageError(
        f"{memory.place} knows nothing of the pipeline, so that there is nothing to restore",
        next_step="check `url`, `schema` or `path` of the state store",
    )


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
