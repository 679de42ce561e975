"""Going back: a new generation of a checkpoint that ends with an earlier batch, or is empty."""

from __future__ import annotations

import json
import math
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ematix_flow.errors import UsageError
from ematix_flow.state import checkpoint, durable
from ematix_flow.state.batches import STATE_VERSION, Batches
from ematix_flow.state.memory import GENERATION
from ematix_flow.state.store import Store
from ematix_flow.state.swap import NEW

# Of the batch in progress alone: it will be another one.
_OF_ONE_BATCH = re.compile(r"lookups/.*|lookups\.json|refused\.json|ticks/.*")
_NUMBERED = re.compile(r"(?:offsets|commits|held)/(\d+)(?:\..+)?")
_SOURCE = re.compile(r"sources/(\d+)/.*")
# Spark's interval between two compact logs, unless a user has set another one.
_COMPACT_EVERY = 10


@dataclass(frozen=True)
class Goal:
    """Which batch stays the last one, and which are repeated."""

    last: int | None
    """None: no batch stays."""
    repeated: tuple[int, ...] = ()
    """Batches that were planned, and perhaps applied; those that Spark still has notes of."""


def to_start(batches: Batches) -> Goal:
    return Goal(None, tuple(batches.planned))


def to_batch(batches: Batches, last: int) -> Goal:
    if last not in batches.ends:
        raise _cannot(f"the pipeline cannot go back to batch {last}", batches)
    return Goal(last, tuple(number for number in batches.planned if number > last))


def to_time(batches: Batches, time: datetime) -> Goal:
    """Batches that were planned after `time` are repeated."""
    for number in reversed(batches.ends):
        if batches.planned_at(number) <= time:
            return to_batch(batches, number)
    raise _cannot(f"the pipeline cannot go back to {time:%Y-%m-%d %H:%M:%S %Z}", batches)


def rewind(store: Store, last: int) -> None:
    """Go on after batch `last`, under a new generation, so that no fence keeps the batches after it from being applied
    again. A crash leaves the old checkpoint or the new one, whole."""
    new = store.folder / NEW
    generation = begin(new)
    _copy_up_to(last, store.checkpoint, new)
    store.adopt(generation)


def begin_again(store: Store) -> None:
    """As if it had never run."""
    store.adopt(begin(store.folder / NEW))


def begin(new: Path) -> str:
    """An empty checkpoint, of a generation of its own."""
    shutil.rmtree(new, ignore_errors=True)
    durable.make(new)
    generation = uuid.uuid4().hex
    durable.write(new / GENERATION, generation)
    return generation


def _copy_up_to(last: int, old: Path, new: Path) -> None:
    batches = Batches.of_folder(old)
    logs = _ends_of_file_logs(batches, last)
    for path in batches.sizes:
        if _stays(path, last, logs):
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(old / path, new / path)
    for source, end in logs.items():
        for name, content in _file_log_up_to(end, old / "sources" / str(source)).items():
            checkpoint.put(new / "sources" / str(source), name, content.encode())


def _stays(path: str, last: int, rebuilt: Mapping[int, int]) -> bool:
    if found := _NUMBERED.fullmatch(path):
        return int(found[1]) <= last
    if found := _SOURCE.fullmatch(path):
        return int(found[1]) not in rebuilt
    if found := STATE_VERSION.fullmatch(path):
        return int(found[2]) <= last + 1
    return path != GENERATION and not _OF_ONE_BATCH.fullmatch(path)


def _ends_of_file_logs(batches: Batches, last: int) -> dict[int, int]:
    """Source -> the last entry of its log that is of a kept batch, for sources that log the files they have read. An
    entry that stays would be read as one batch with all after it. What other sources keep does not grow."""
    now, then = batches.offsets(batches.planned[-1]), batches.offsets(last)
    return {number: then[number].get("logOffset", -1) for number, end in enumerate(now) if "logOffset" in end}


def _file_log_up_to(end: int, log: Path) -> dict[str, str]:
    """The log of a file source as it was at entry `end`, by name of file. Spark has put earlier entries together in one
    compact log and then removed them; each of its lines tells of which entry it was."""
    numbers = {int(name.partition(".")[0]): name for name in checkpoint.files_in(log)}
    compact = [number for number, name in numbers.items() if name.endswith(".compact")]
    newest = max(compact, default=-1)
    entries: dict[int, list[str]] = {}
    for number in sorted(number for number in numbers if number >= newest):
        _, *lines = (log / numbers[number]).read_text(encoding="utf-8").split("\n")
        for line in lines:
            entries.setdefault(json.loads(line)["batchId"] if number == newest else number, []).append(line)
    # Spark takes the interval from the compact logs that it finds, so that one is enough, where it would be.
    every = math.gcd(_COMPACT_EVERY, *(number + 1 for number in compact))
    last_compact = (end + 1) // every * every - 1
    together = [line for number in range(last_compact + 1) for line in entries.get(number, [])]
    contents = {f"{last_compact}.compact": together} if last_compact >= 0 else {}
    contents |= {str(number): entries.get(number, []) for number in range(last_compact + 1, end + 1)}
    return {name: "\n".join(["v1", *lines]) for name, lines in contents.items()}


def _cannot(found: str, batches: Batches) -> UsageError:
    if not batches.ends:
        return UsageError(f"{found}: it has committed none", next_step="--from-start always works")
    first, last = batches.ends[0], batches.ends[-1]
    return UsageError(
        found,
        next_step=f"the oldest batch that can be the last one is {first}, planned at "
        f"{batches.planned_at(first):%Y-%m-%d %H:%M:%S %Z}, the newest is {last}; --from-start always works",
    )
