"""The batches of a checkpoint, read from Spark's notes: when each was planned, which are done, where it could end."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from ematix_flow.state.checkpoint import files_in
from ematix_flow.state.kernel import YEAR_1_MS
from ematix_flow.state.memory import Memory
from ematix_flow.state.vault import StateDamaged

STATE_VERSION = re.compile(r"(state/.+)/(\d+)[^/]*\.(delta|changelog|snapshot|zip)")
"""A file of the operator state: where, of which version, of what kind. Version N + 1 is the state after batch N."""

_WHOLE = {"snapshot", "zip"}


@dataclass(frozen=True)
class Batches:
    sizes: Mapping[str, int] = field(repr=False)
    """The files of the checkpoint, in bytes."""
    read: Callable[[str], bytes] = field(repr=False)

    @classmethod
    def of_folder(cls, folder: Path) -> Batches:
        sizes = {path: stamp.size for path, stamp in files_in(folder).items()}
        return cls(sizes, lambda path: (folder / path).read_bytes())

    @classmethod
    def of(cls, memory: Memory) -> Batches:
        """As the state store has them, which may be more than there is on this disk."""
        vault = memory.vault
        if vault is None:
            return cls.of_folder(memory.folder / "checkpoint")
        held = vault.latest()
        if held is None:
            return cls({}, lambda _: b"")
        generation = held.generation
        sizes = {path: kept.size for path, kept in held.files.items()}
        return cls(sizes, lambda path: b"".join(content for _, content in vault.read(generation, [path])))

    @cached_property
    def planned(self) -> list[int]:
        return self._numbers("offsets")

    @cached_property
    def committed(self) -> list[int]:
        return self._numbers("commits")

    @cached_property
    def ends(self) -> list[int]:
        """Those after which a checkpoint can be cut off: Spark goes on from a batch that is committed, asks for the one
        before it, and needs the operator state that it left."""
        planned, committed = set(self.planned), self.committed
        return [n for n in committed if planned >= {max(n - 1, 0), n} and self._state_is_kept(n + 1)]

    def planned_at(self, batch: int) -> datetime:
        metadata, *_ = self._noted(f"offsets/{batch}")
        return _time(metadata["batchTimestampMs"])

    def offsets(self, batch: int) -> list[dict[str, Any]]:
        """Where the batch ends, by source; empty for a source that had nothing yet."""
        _, *offsets = self._noted(f"offsets/{batch}")
        return offsets

    def watermark(self) -> datetime | None:
        """As the next batch will see it; None if no row has moved it."""
        latest = 0
        for log, name in (("offsets", "batchWatermarkMs"), ("commits", "nextBatchWatermarkMs")):
            for number in self._numbers(log)[-1:]:
                latest = max(latest, self._noted(f"{log}/{number}")[0].get(name, 0))
        return _time(latest - YEAR_1_MS) if latest else None

    def _noted(self, path: str) -> list[dict[str, Any]]:
        """A note of Spark's, after the line with its version: one JSON object per line, or a dash."""
        try:
            _, metadata, *lines = self.read(path).decode().split("\n")
            return [json.loads(metadata), *({} if line == "-" else json.loads(line) for line in lines)]
        except (OSError, ValueError) as error:
            raise StateDamaged(
                f"{path} of the checkpoint is damaged or gone",
                next_step="start anew with `flow rewind NAME --from-start`, or put back a backup",
            ) from error

    def _numbers(self, log: str) -> list[int]:
        return sorted(int(found[1]) for path in self.sizes if (found := re.fullmatch(rf"{log}/(\d+)", path)))

    def _state_is_kept(self, version: int) -> bool:
        """In every part, a picture of the whole state and all changes after it; or all changes since the beginning."""
        return all(_reaches(version, whole, changes) for whole, changes in self._state.values())

    @cached_property
    def _state(self) -> dict[str, tuple[set[int], set[int]]]:
        parts: dict[str, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        for path in self.sizes:
            if found := STATE_VERSION.fullmatch(path):
                whole, changes = parts[found[1]]
                (whole if found[3] in _WHOLE else changes).add(int(found[2]))
        return dict(parts)


def _reaches(version: int, whole: set[int], changes: set[int]) -> bool:
    while version not in whole and version in changes:
        version -= 1
    return version == 0 or version in whole


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
