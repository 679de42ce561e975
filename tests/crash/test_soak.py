"""A day in ten minutes: a daemon that is fed all the time and killed every twenty seconds."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.orders import Orders

SECONDS = float(os.environ.get("EMATIX_FLOW_SOAK_SECONDS", "600"))
BETWEEN_KILLS = 20.0
FLOW = str(Path(sys.executable).parent / "flow")


@pytest.mark.slow
def test_a_daemon_that_is_killed_all_day_loses_and_doubles_nothing_and_does_not_grow(orders: Orders) -> None:
    targets = ("duckdb", "sqlite")
    (orders.folder / "orders.toml").write_text(orders.toml(on_error="dlq", targets=targets))
    command = [FLOW, "consume", "orders", "--restart-on-error", "--initial-backoff-ms=0", "--max-backoff-ms=1000"]
    memory: list[int] = []
    fed, bad, files = 0, 0, 0
    with (orders.folder / "log").open("w") as log, subprocess.Popen(command, cwd=orders.folder, stderr=log) as daemon:
        try:
            end, next_kill, kills = time.monotonic() + SECONDS, time.monotonic() + BETWEEN_KILLS, 0
            while time.monotonic() < end:
                rows = [{"id": i, "amount": i / 2} for i in range(fed, fed + 50)]
                orders.arrive(f"{files}.jsonl", [*rows, f"bad {files}"])
                fed, bad, files = fed + len(rows), bad + 1, files + 1
                if time.monotonic() > next_kill:
                    memory.append(sum(_resident(process) for process in _below(daemon.pid)))
                    _kill_one(daemon.pid, kills)
                    next_kill, kills = time.monotonic() + BETWEEN_KILLS, kills + 1
                time.sleep(0.5)
            _wait_until_all_is_there(orders, fed, time.monotonic() + 120)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(120) == 0
        finally:
            daemon.kill()
    assert orders.ids_in_database() == list(range(fed))
    assert sorted(row[0] for row in orders.in_sqlite("SELECT id FROM orders")) == list(range(fed))
    assert sorted(letter.payload for letter in orders.dead_letters()) == sorted(f"bad {i}".encode() for i in range(bad))
    early, late = memory[: len(memory) // 3], memory[-(len(memory) // 3) :]
    assert statistics.median(late) < 1.25 * statistics.median(early), memory


def _kill_one(daemon: int, number: int) -> None:
    """In turn the pipeline's process and its Java process."""
    children = [process for process in _below(daemon) if process != daemon]
    wanted = "java" if number % 2 else "flow"
    victims = [process for process in children if _name(process) == wanted]
    if victims:
        os.kill(victims[0], signal.SIGKILL)


def _wait_until_all_is_there(orders: Orders, rows: int, deadline: float) -> None:
    while time.monotonic() < deadline:
        try:
            if len(orders.in_sqlite("SELECT id FROM orders")) >= rows:
                return
        except Exception:  # noqa: BLE001 - it is being written
            pass
        time.sleep(1)
    pytest.fail(f"after the kills not all of {rows} rows arrived; the log is {orders.folder / 'log'}")


def _below(process: int) -> Iterator[int]:
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _below(int(child))


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
