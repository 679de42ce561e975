"""Step 4 of the commit protocol: what makes a checkpoint outlive the process (a disk), or the machine (a vault)."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ematix_flow.errors import FlowError
from ematix_flow.state import checkpoint, durable, mirror
from ematix_flow.state.checkpoint import Stamp, changed, files_in, is_whole_state
from ematix_flow.state.dead_letters import LEASED, PENDING, DeadLetters
from ematix_flow.state.home import DEAD_LETTERS
from ematix_flow.state.lease import Lease
from ematix_flow.state.swap import NEW, swap
from ematix_flow.state.vault import LeaseLost, Vault

KEPT_NOTE = "kept.json"

_log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Opened with the folder in hand, before anything in it is used."""

    def save(self, generation: str, batch: int | None) -> None:
        """Everything that is new in the checkpoint is durable when this returns."""

    def check(self) -> None:
        """Raises if another process may have taken over."""

    def adopt(self, generation: str) -> None:
        """Make `checkpoint.new` the checkpoint, and durable."""

    def dead_letters(self, generation: str) -> DeadLetters: ...

    def close(self, generation: str) -> None: ...


class OnDisk:
    """Flushed to the disk, which Spark does not do by itself."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._checkpoint = folder, folder / "checkpoint"
        # What this disk does from now on, a store that it was saved to before will not know.
        (folder / KEPT_NOTE).unlink(missing_ok=True)
        checkpoint.remove_torn(self._checkpoint)
        self._known: dict[str, Stamp] = files_in(self._checkpoint)

    def save(self, generation: str, batch: int | None) -> None:
        now = files_in(self._checkpoint)
        new = [self._checkpoint / path for path in changed(now, self._known)]
        for file in new:
            if file.exists():
                durable.sync(file)
        for folder in {above for file in new for above in file.parents if above.is_relative_to(self._checkpoint)}:
            durable.sync(folder)
        self._known = now

    def check(self) -> None:
        """The kernel keeps the lock of a process for as long as that lives."""

    def adopt(self, generation: str) -> None:
        swap(self._folder)
        self._known = files_in(self._checkpoint)

    def dead_letters(self, generation: str) -> DeadLetters:
        return DeadLetters(self._folder / DEAD_LETTERS, generation)

    def close(self, generation: str) -> None:
        pass


class InVault:
    """Copied into a vault. The folder is only where Spark works; it may be empty at every start.

    Each save adds what the batch planned and changed. Once in every `interval` (seconds), a save also brings pictures
    of the whole state, forgets what Spark has forgotten, and so makes the vault an exact image of the folder.
    """

    def __init__(self, pipeline: str, folder: Path, vault: Vault, interval: float) -> None:
        self._pipeline, self._vault, self._interval = pipeline, vault, interval
        self._checkpoint, self._note = folder / "checkpoint", folder / KEPT_NOTE
        self._lease = Lease(pipeline, vault)
        try:
            self._known = mirror.brought_together(pipeline, self._checkpoint, self._note, vault)
        except BaseException:
            self._lease.release()
            raise
        self._complete = time.monotonic()

    def save(self, generation: str, batch: int | None) -> None:
        now = files_in(self._checkpoint)
        complete = time.monotonic() - self._complete >= self._interval
        put = [path for path in changed(now, self._known) if complete or not is_whole_state(path)]
        gone = self._known.keys() - now.keys() if complete else set()
        if put or gone:
            files = {path: self._checkpoint / path for path in put}
            number = self._vault.save(generation, batch, files, gone, self._lease.token)
            self._known = {path: stamp for path, stamp in self._known.items() if path not in gone}
            self._known |= {path: now[path] for path in put}
            mirror.Note(generation, number).write(self._note)
        if complete:
            self._complete = time.monotonic()

    def check(self) -> None:
        self._lease.check()

    def adopt(self, generation: str) -> None:
        """First in the vault: a folder that does not follow is behind, and is brought up to it at the next start."""
        new = self._checkpoint.with_name(NEW)
        number = self._vault.save(generation, None, {path: new / path for path in files_in(new)}, (), self._lease.token)
        swap(new.parent)
        mirror.Note(generation, number).write(self._note)
        self._known = files_in(self._checkpoint)

    def dead_letters(self, generation: str) -> DeadLetters:
        """Those that the pipeline left on this disk, before it had a vault, move there."""
        letters, left = self._vault.dead_letters(generation), self._note.with_name(DEAD_LETTERS)
        if left.exists():
            with closing(DeadLetters(left)) as local:
                letters.put(replace(one, status=PENDING) if one.status == LEASED else one for one in local.find())
            for file in left.parent.glob(f"{DEAD_LETTERS}*"):
                file.unlink()
        return letters

    def close(self, generation: str) -> None:
        """With the note that the last batch is done, which Spark writes after its save."""
        try:
            self.save(generation, None)
        except LeaseLost:
            pass
        except FlowError as error:
            # The last batch is repeated at the next start, and meets its fences.
            _log.warning("last save failed", extra={"pipeline": self._pipeline, "reason": error.found})
        self._lease.release()
        self._vault.close()
