"""What keeps a pipeline's memory outside the machine: a vault of files by generation and path, and a lease on it.

Spark's checkpoint files are immutable, or written again with the same meaning by a repeated batch, so that a vault only
ever adds files, replaces whole ones and forgets them. A vault belongs to one pipeline.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from ematix_flow.errors import FlowError
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.holder import Holder

PART_BYTES = 16 << 20
"""Larger files are kept in parts, because databases limit the size of one value."""

RUNS = "runs"
"""The shelf of the run history: one small document for each run."""


@dataclass(frozen=True)
class Kept:
    """A file in the vault."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Held:
    """What the latest save left in the vault."""

    generation: str
    save: int
    """Its number; every save of the pipeline has a higher one than those before it."""
    batch: int | None
    saved_at: datetime
    files: Mapping[str, Kept] = field(repr=False)


@dataclass(frozen=True)
class Leased:
    """The lease as it stands, whether its holder is alive or not."""

    holder: Holder
    token: int
    beat: int
    """Changes whenever the holder says that it is alive."""
    silent: float = 0.0
    """Seconds since then, as far as the vault knows."""


class Vault(Protocol):
    place: str
    """For a person; no secret in it."""

    def latest(self) -> Held | None:
        """None if nothing was ever saved."""

    def read(self, generation: str, paths: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """The content of these files, each as one piece, in any order."""

    def save(
        self, generation: str, batch: int | None, put: Mapping[str, Path], gone: Collection[str], token: int
    ) -> int:
        """In one transaction: add or replace `put`, forget `gone`, make `generation` the current one. Gives the number
        of the save. Raises `LeaseLost` if `token` is no longer that of the lease, and then changes nothing."""

    def lease(self) -> Leased | None:
        """None if nobody holds it."""

    def take(self, holder: Holder, instead_of: Leased | None) -> int | None:
        """Become the holder if the lease is still as it was seen; the new token, or None if somebody was faster."""

    def beat(self, token: int) -> bool:
        """Tell that the holder is alive. False if it is the holder no longer. Called from a thread of its own."""

    def mine(self, token: int) -> bool:
        """Whether this token holds the lease, as the vault itself knows it now."""

    def leave(self, token: int) -> None:
        """Give the lease back, so that the next one need not wait."""

    def dead_letters(self, generation: str) -> DeadLetters: ...

    def shelf(self, name: str) -> dict[str, bytes]:
        """Documents beside the checkpoint that no generation owns and no lease protects."""

    def put_on_shelf(self, name: str, put: Mapping[str, bytes], gone: Collection[str] = ()) -> None: ...

    def compact(self) -> int:
        """Forget older generations and give their room back. Gives the bytes that were freed, as far as known."""

    def close(self) -> None: ...


class LeaseLost(FlowError):
    """Another process has taken over this pipeline; this one stops before it applies anything more."""

    code = "lease-lost"

    def __init__(self, pipeline: str, now: Leased | None) -> None:
        who = f": it is run by {now.holder} now" if now else ""
        super().__init__(
            f"pipeline {pipeline!r} was taken over, because this process was not heard of for too long{who}",
            next_step="nothing is lost: the other process goes on from the last batch that was saved; "
            "if this machine was only overloaded or paused, give it less to do",
        )


class StateStoreUnavailable(FlowError):
    """The state store cannot be reached now; the batch is tried again."""

    code = "state-store-unavailable"
    transient = True


class StateStoreRefused(FlowError):
    """The state store does not let the pipeline in: a wrong password, a missing right, a table of another version."""

    code = "state-store-refused"


class StateDamaged(FlowError):
    """A file in the state store is not what was saved there."""

    code = "state-damaged"


def contents(put: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    """Of the files that are still there: Spark forgets old ones at any time."""
    for path, file in put.items():
        with suppress(FileNotFoundError):
            yield path, file.read_bytes()


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def parts_of(content: bytes) -> Iterator[bytes]:
    """At least one, also of an empty file."""
    for start in range(0, max(len(content), 1), PART_BYTES):
        yield content[start : start + PART_BYTES]
