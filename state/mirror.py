"""How a checkpoint folder and the vault come together when a pipeline starts.

Nothing is visible in a target before it is in the vault, so that the vault is right wherever the disk is merely behind
or has begun a batch that it never saved. Only where their histories differ does a person have to decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ematix_flow.errors import FlowError
from ematix_flow.state import checkpoint
from ematix_flow.state.checkpoint import Stamp, files_in, is_log
from ematix_flow.state.holder import boot
from ematix_flow.state.vault import Held, Kept, StateDamaged, Vault, digest_of

_SHOWN = 3


@dataclass(frozen=True)
class Note:
    """Which save of the vault a folder holds, written beside it."""

    generation: str
    save: int
    boot: str = field(default_factory=boot)
    """A disk that has seen a restart of its machine may have lost what was not flushed."""

    @classmethod
    def read(cls, file: Path) -> Note | None:
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    def write(self, file: Path) -> None:
        """Without waiting for the disk: a note that is lost or old only makes the next start compare everything."""
        checkpoint.put(file.parent, file.name, json.dumps(asdict(self)).encode())

    def is_beyond(self, held: Held) -> bool:
        """Whether the folder holds a save that the vault does not have."""
        return self.save > held.save or (self.save == held.save and self.generation != held.generation)


class StateDisagrees(FlowError):
    """The checkpoint on this disk and the one in the state store are of different histories."""

    code = "state-disagrees"

    def __init__(self, pipeline: str, what: str, folder: Path) -> None:
        super().__init__(
            f"pipeline {pipeline!r}: {what}",
            next_step="check that the state store is the right one; then `flow state restore "
            f"{pipeline}` replaces what is in {folder} by what is in the store. To move a pipeline to a new, empty "
            'store, run it once with kind = "local"; replay its dead letters first, because they stay where they are',
        )


def brought_together(pipeline: str, folder: Path, note: Path, vault: Vault) -> dict[str, Stamp]:
    """Restore what the folder lacks. Gives the files that the vault has, as they are in the folder now."""
    checkpoint.remove_torn(folder)
    held, noted, local = vault.latest(), Note.read(note), files_in(folder)
    if held is None:
        if noted is not None:
            what = f"this disk was saved to a state store before, but {vault.place} knows nothing of the pipeline"
            raise StateDisagrees(pipeline, what, folder)
        return {}
    if noted is None and any(map(is_log, local)):
        what = f"this disk has a checkpoint that does not come from {vault.place}, which has another one"
        raise StateDisagrees(pipeline, what, folder)
    if noted is not None and noted.is_beyond(held):
        what = (
            f"this disk has save {noted.save} of generation {noted.generation[:8]}, {vault.place} "
            f"has only save {held.save} of generation {held.generation[:8]}"
        )
        raise StateDisagrees(pipeline, what, folder)
    if noted == _note(held):
        if differing := _unlike(folder, held, filter(is_log, local)):
            shown = ", ".join(differing[:_SHOWN]) + (" and others" if len(differing) > _SHOWN else "")
            what = f"{shown} on this disk is not what was saved to {vault.place}"
            raise StateDisagrees(pipeline, what, folder)
        return _restored(folder, held, _missing(held, local), note, vault)
    return restored(folder, note, vault, held)


def restored(folder: Path, note: Path, vault: Vault, held: Held) -> dict[str, Stamp]:
    """Make the folder an exact image of the vault."""
    local = files_in(folder)
    # Until it is complete, the folder must not pass for what the vault has, nor for somebody else's.
    Note(held.generation, 0).write(note)
    for path in local.keys() - held.files.keys():
        checkpoint.remove(folder, path)
    return _restored(folder, held, [*_missing(held, local), *_unlike(folder, held, local)], note, vault)


def _restored(folder: Path, held: Held, lacking: Iterable[str], note: Path, vault: Vault) -> dict[str, Stamp]:
    wanted, found = set(lacking), set()
    for path, content in vault.read(held.generation, wanted):
        if digest_of(content) != held.files[path].digest:
            raise _damaged(path, vault)
        checkpoint.put(folder, path, content)
        found.add(path)
    if wanted - found:
        raise _damaged(min(wanted - found), vault)
    _note(held).write(note)
    local = files_in(folder)
    return {path: local[path] for path in held.files if path in local}


def _missing(held: Held, local: dict[str, Stamp]) -> list[str]:
    """A file of the state, or a note of ours, may have been written again by a batch that was not saved: what was saved
    counts. Its size shows that well enough; its content may be large."""
    return [path for path, kept in held.files.items() if path not in local or local[path].size != kept.size]


def _unlike(folder: Path, held: Held, local: Iterable[str]) -> list[str]:
    return [path for path in local if path in held.files and not _equal(folder / path, held.files[path])]


def _equal(file: Path, kept: Kept) -> bool:
    return file.stat().st_size == kept.size and digest_of(file.read_bytes()) == kept.digest


def _note(held: Held) -> Note:
    return Note(held.generation, held.save)


def _damaged(path: str, vault: Vault) -> StateDamaged:
    return StateDamaged(
        f"{path} in {vault.place} is damaged or gone",
        next_step="put back a backup of the state store, or start anew with `flow rewind NAME --from-start`",
    )
