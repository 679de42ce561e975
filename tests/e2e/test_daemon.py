"""`flow consume` as an operator meets it: metrics and probes, a Java process that is killed, an end that is clean."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.orders import Orders
from tests.waiting import wait_for

FLOW = str(Path(sys.executable).parent / "flow")
DEADLINE_SECONDS = 180

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the Java process in /proc")


def test_a_killed_java_process_costs_a_restart_and_no_row(orders: Orders) -> None:
    orders.numbered(range(10))
    (orders.folder / "orders.toml").write_text(orders.toml())
    with consuming(orders, "--metrics-port=0", "--restart-on-error", "--initial-backoff-ms=0") as daemon:
        base = event(daemon, "serving")["url"].removesuffix("/metrics")
        assert get(f"{base}/healthz")[0] == 200
        assert get(f"{base}/readyz")[0] == 503
        child = event(daemon, "started")["pid"]
        event(daemon, "batch")
        assert get(f"{base}/readyz") == (200, '{"ok": true, "reason": "batch 0 was committed"}')
        assert samples(base, "rows_written_total", "restarts_total") == [10, 0]

        os.kill(wait_for(lambda: java_of(child)), signal.SIGKILL)
        orders.arrive("later.jsonl", [{"id": 10, "amount": 5}])
        again = event(daemon, "restarting")
        assert (again["attempt"], again["reason"]) == (1, "java-died: Spark's Java process was killed by signal 9")
        base = event(daemon, "serving")["url"].removesuffix("/metrics")
        # If it died before Spark noted that the first batch is done, that one comes again and adds nothing.
        wait_for(lambda: event(daemon, "batch")["consumed"] == 1)
        assert samples(base, "rows_written_total", "restarts_total") == [1, 1]

        daemon.terminate()
        output, _ = daemon.communicate(timeout=DEADLINE_SECONDS)
    assert daemon.returncode == 0
    assert json.loads(output)["status"] == "stopped"
    assert orders.ids_in_database() == list(range(11))


def test_a_killed_parent_leaves_nothing_running(orders: Orders) -> None:
    (orders.folder / "orders.toml").write_text(orders.toml())
    with consuming(orders) as daemon:
        child = event(daemon, "started")["pid"]
        java = wait_for(lambda: java_of(child))
        daemon.kill()
        wait_for(lambda: not (is_running(child) or is_running(java)))


@contextmanager
def consuming(orders: Orders, *options: str) -> Iterator[subprocess.Popen[str]]:
    words = [FLOW, "--log-format=json", "consume", "orders", "--format=json", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=orders.folder, stdout=pipe, stderr=pipe, text=True) as daemon:
        deadline = threading.Timer(DEADLINE_SECONDS, daemon.kill)
        deadline.start()
        try:
            yield daemon
        finally:
            deadline.cancel()
            daemon.kill()


def event(daemon: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """The next event of this name; its log ends when the daemon does, at the latest at its deadline."""
    assert daemon.stderr is not None
    seen = []
    for line in daemon.stderr:
        seen.append(line)
        facts: dict[str, Any] = json.loads(line)
        if facts["event"] == name:
            return facts
    pytest.fail(f"no {name}; the log was: {''.join(seen)}")


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1"), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(base: str, *names: str) -> list[float]:
    lines = get(f"{base}/metrics")[1].splitlines()
    return [
        float(line.split()[-1]) for name in names for line in lines if line.startswith(f"ematix_streaming_{name}{{")
    ]


def java_of(process: int) -> int | None:
    """The Java process that this one started, if it is there yet."""
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text().strip() == "java":
            return int(child)
    return None


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
