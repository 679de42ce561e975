"""Starts Spark's Python workers; `spark.python.daemon.module` names it.

A worker is used for task after task, and after each of them Spark lets it collect garbage. That goes through everything
that was ever imported, pandas above all, and takes longer than the task of a small batch. So what was imported is set
aside, where the collector does not look.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    import socket

_run_task = daemon.worker
_imported = 0


def _run_task_unburdened(sock: socket.socket, authenticated: bool) -> int:
    global _imported  # noqa: PLW0603
    if len(sys.modules) > _imported:
        _imported = len(sys.modules)
        gc.freeze()
    return _run_task(sock, authenticated)


if __name__ == "__main__":
    daemon.worker = _run_task_unburdened
    daemon.manager()
