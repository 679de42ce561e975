"""Who runs a pipeline: a process, told apart from every other one on this machine and on others."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    host: str
    machine: str
    """This boot of this machine, and this space of process numbers; containers of one host name differ in it."""
    pid: int
    born: str
    """When the process began, so that a later process of the same number is another one."""

    @classmethod
    def here(cls) -> Holder:
        return cls(socket.gethostname(), _machine(), os.getpid(), _born(os.getpid()))

    @classmethod
    def from_text(cls, text: str) -> Holder:
        return cls(**json.loads(text))

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def is_dead(self) -> bool:
        """Only said of a process of this machine that has ended; of any other one nobody here knows."""
        return self.machine == _machine() and self.machine != "" and _born(self.pid) != self.born

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _machine() -> str:
    """Empty where the system does not tell; then nobody is ever called dead."""
    try:
        return f"{boot()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def boot() -> str:
    """Another one after every start of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _born(pid: int) -> str:
    """In ticks since the machine started; empty if there is no such process, or only what is left of one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name of the program, in parentheses, may contain anything; what follows it is plain.
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in {"Z", "X"} else rest[18]
