"""One process per pipeline on this machine: a lock that the kernel drops when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ematix_flow.errors import FlowError


class PipelineBusy(FlowError):
    """Another process runs this pipeline now."""

    code = "pipeline-busy"


class SingleWriter:
    def __init__(self, pipeline: str, folder: Path) -> None:
        self._handle = (folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._handle.seek(0)
            holder = self._handle.read().strip() or "unknown"
            self._handle.close()
            raise PipelineBusy(
                f"pipeline {pipeline!r} is already running in process {holder}",
                next_step=f"stop that process first; both have their state in {folder}",
            ) from None
        self._handle.truncate(0)
        self._handle.write(str(os.getpid()))
        self._handle.flush()

    def release(self) -> None:
        self._handle.close()
