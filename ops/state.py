"""What a pipeline has in its state store and on this disk, told without changing either."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from ematix_flow.errors import UsageError
from ematix_flow.ops.discovery import Found
from ematix_flow.ops.output import by_name, counted, table
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.batches import Batches
from ematix_flow.state.checkpoint import files_in, is_log
from ematix_flow.state.keeping import KEPT_NOTE
from ematix_flow.state.lease import EXPIRES_SECONDS
from ematix_flow.state.memory import GENERATION, Memory
from ematix_flow.state.mirror import Note
from ematix_flow.state.vault import Held, Vault

_KINDS = {"offsets": "offsets", "sources": "sources", "commits": "commits", "state": "operator state"}
_FLOCK = re.compile(r"FLOCK .* [0-9a-f]+:[0-9a-f]+:(\d+) ")


@dataclass(frozen=True)
class Files:
    files: int
    bytes: int


@dataclass(frozen=True)
class Running:
    """Who has the lock or the lease."""

    who: str
    alive: bool


@dataclass(frozen=True)
class State:
    pipeline: str
    kind: str
    place: str
    generation: str | None
    planned: int | None
    """The latest batch of which Spark knows the input."""
    planned_at: datetime | None
    committed: int | None
    """The latest batch that is done."""
    oldest: int | None
    """The earliest batch that `flow rewind` can go back to."""
    watermark: datetime | None
    files: dict[str, Files]
    running: Running | None
    dead_letters: dict[str, int]
    """By status."""
    folder: str
    disk: str
    """What this disk has, compared to the state store; empty where the disk is the store."""


def memory_of(spec: Found) -> Memory:
    if spec.state_store.kind == "in_memory":
        raise UsageError(
            f"pipeline {spec.name!r} keeps its state in memory, and it is gone when the process ends",
            next_step='declare another kind in [state_store]; "local" is the default',
        )
    return Memory(spec.name, spec.state_store)


def state_of(spec: PipelineSpec) -> State:
    with closing(memory_of(spec)) as memory:
        batches = Batches.of(memory)
        planned, committed = batches.planned[-1:], batches.committed[-1:]
        generation = batches.read(GENERATION).decode() if GENERATION in batches.sizes else None
        return State(
            pipeline=spec.name,
            kind=spec.state_store.kind,
            place=memory.place,
            generation=generation,
            planned=planned[0] if planned else None,
            planned_at=batches.planned_at(planned[0]) if planned else None,
            committed=committed[0] if committed else None,
            oldest=min(batches.ends, default=None),
            watermark=batches.watermark(),
            files=_by_kind(batches),
            running=_leased(memory.vault) if memory.vault else _locked(memory.folder / "lock"),
            dead_letters=_letters(memory),
            folder=str(memory.folder),
            disk=_compared(memory, memory.vault.latest()) if memory.vault else "",
        )


def state_text(state: State) -> str:
    rows = [["kept in", f"{state.place} ({state.kind})"], ["generation", state.generation or "none: it never ran"]]
    if state.planned is not None:
        done = "committed" if state.planned == state.committed else "not committed, it will be repeated"
        rows.append(["latest batch", f"{state.planned}, planned at {time_text(state.planned_at)}, {done}"])
        back = "to no batch yet" if state.oldest is None else f"to batch {state.oldest} and any after it"
        rows.append(["may go back", f"{back}; or to the start"])
    if state.watermark is not None:
        rows.append(["watermark", time_text(state.watermark)])
    rows += [[kind, f"{counted(of.files, 'file')}, {size_text(of.bytes)}"] for kind, of in state.files.items()]
    running = state.running
    rows.append(["run by", f"{running.who}, {'alive' if running.alive else 'dead'}" if running else "nobody"])
    rows.append(["dead letters", by_name(state.dead_letters) or "none"])
    if state.disk:
        rows.append(["this disk", f"{state.folder} {state.disk}"])
    return f"{state.pipeline}\n{table(rows, indent='  ')}"


def time_text(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def size_text(size: float) -> str:
    """`310 bytes`, `12.5 kB`, `50.0 MB`."""
    if size < 1000:
        return counted(int(size), "byte")
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} GB"


def state_facts(state: State) -> dict[str, object]:
    return asdict(state)


def _by_kind(batches: Batches) -> dict[str, Files]:
    files, sizes = Counter[str](), Counter[str]()
    for path, size in batches.sizes.items():
        top, _, below = path.partition("/")
        kind = _KINDS.get(top, "lookups" if top == "lookups" else "notes") if below else "notes"
        files[kind] += 1
        sizes[kind] += size
    order = [*_KINDS.values(), "lookups", "notes"]
    return {kind: Files(files[kind], sizes[kind]) for kind in order if kind in files}


def _leased(vault: Vault) -> Running | None:
    leased = vault.lease()
    if leased is None:
        return None
    heard = f", last heard of {leased.silent:.0f} s ago"
    return Running(f"{leased.holder}{heard}", not leased.holder.is_dead and leased.silent < EXPIRES_SECONDS)


def _locked(lock: Path) -> Running | None:
    """Asking for the lock could keep a pipeline from starting at that moment; the kernel lists who has it."""
    try:
        inode, locks = lock.stat().st_ino, Path("/proc/locks").read_text(encoding="ascii")
        holder = lock.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    held = any(found[1] == str(inode) for found in _FLOCK.finditer(locks))
    return Running(f"process {holder}", alive=True) if held else None


def _letters(memory: Memory) -> dict[str, int]:
    counts = Counter[str]()
    with closing(memory.dead_letters()) as letters:
        for count in letters.counts():
            counts[count.status] += count.letters
    return dict(counts)


def _compared(memory: Memory, held: Held | None) -> str:
    """In the words of what the next start will do about it."""
    noted, local = Note.read(memory.folder / KEPT_NOTE), files_in(memory.folder / "checkpoint")
    has_logs = any(map(is_log, local))
    if held is None:
        if noted is not None:
            return "was saved to another state store: this one knows nothing of the pipeline, and it will not start"
        return "has a checkpoint, which the next start brings to the state store" if has_logs else "has nothing"
    if noted is None:
        return "has a checkpoint of its own: `flow state restore` replaces it" if has_logs else _behind("nothing")
    if noted.is_beyond(held):
        return f"has save {noted.save}, which is not in the state store: `flow state restore` replaces it"
    if noted.save < held.save:
        return _behind(f"save {noted.save} of {held.save}")
    return f"has the same (save {held.save})"


def _behind(what: str) -> str:
    return f"has {what}; the next start restores what it lacks"
