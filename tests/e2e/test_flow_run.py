"""`flow` running pipelines, as a user types it: rows land, runs go on, failures say what and where.

What need not be a process of its own shares the Spark of the tests.
"""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import duckdb
import pytest

from ematix_flow.ops.cli import main
from tests.orders import Orders

FLOW = str(Path(sys.executable).parent / "flow")
DEADLINE_SECONDS = 180


def flow(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [FLOW, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.mark.usefixtures("spark")
def test_the_example_project_works_and_a_second_run_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    flow("init", "shop", cwd=tmp_path)
    shop = tmp_path / "shop"
    assert "exactly once: " in flow("validate", "pipelines.toml", cwd=shop).stdout

    first = flow("run", "--bounded", "orders", cwd=shop)
    assert _table(shop / "orders.duckdb") == [1, 2, 3, 5, 8]
    assert (
        "rows read     8\n  rows written  5 to orders\n  dead letters  2 (decode 2), see `flow dlq list orders`"
        in first.stdout
    )
    assert first.stderr.splitlines()[0] == "orders: starting Spark ..."
    assert first.stderr.splitlines()[1].startswith("orders batch 0: 8 rows, 5 written, 2 set aside, ")

    monkeypatch.chdir(shop)
    assert main(["run", "--bounded", "orders", "--format", "json"]) == 0
    second = json.loads(capfd.readouterr().out)
    assert (second["status"], second["batches"], second["rows_written"]) == ("success", 0, {"orders": 0})
    assert _table(shop / "orders.duckdb") == [1, 2, 3, 5, 8]

    assert "has these files already" in flow("init", "shop", cwd=tmp_path, code=2).stderr


@pytest.mark.usefixtures("spark")
def test_consume_stops_after_its_batch_and_the_next_run_goes_on(orders: Orders) -> None:
    files = [range(10 * number, 10 * number + 10) for number in range(200)]
    orders.numbered(*files)
    (orders.folder / "orders.toml").write_text(orders.toml(source="max_files_per_batch = 1"))

    first = _consumed_until(signal.SIGTERM, orders)
    second = _consumed_until(signal.SIGINT, orders)
    written = [result["rows_written"]["orders"] for result in (first, second)]
    assert all(20 <= rows < 1_000 for rows in written), "it stopped in the middle of its work"
    # Spark's list of files may be one batch ahead of what it planned when it ends; the next plan then takes two files.
    assert all(
        rows % 10 == 0 and rows >= 10 * run["batches"] > 10 for rows, run in zip(written, (first, second), strict=True)
    )
    assert len(orders.ids_in_database()) == sum(written)

    log = (orders.folder / ".ematix-flow" / "logs" / "flow.log").read_text()
    assert f" INFO batch pipeline=orders batch={first['batches']} consumed=" in log

    assert orders.run().rows_written == {"orders": 2_000 - sum(written)}
    assert orders.ids_in_database() == list(range(2_000))


def _consumed_until(stop: signal.Signals, orders: Orders) -> dict[str, Any]:
    """The result of a daemon that is told to stop while it works."""
    with _started("--log-format", "json", "consume", "orders", "--format", "json", cwd=orders.folder) as daemon:
        assert daemon.stderr is not None
        begun = _wait_for(daemon.stderr, lambda event: event["event"] == "batch")
        _wait_for(daemon.stderr, lambda event: event["event"] == "batch" and event["batch"] > begun["batch"])
        if stop == signal.SIGTERM:
            busy = flow("run", "--bounded", "orders", cwd=orders.folder, code=1)
            assert busy.stderr.splitlines()[-2].startswith("error[pipeline-busy]: pipeline 'orders' is already running")
        daemon.send_signal(stop)
        output, _ = daemon.communicate(timeout=DEADLINE_SECONDS)
    assert daemon.returncode == 0
    result: dict[str, Any] = json.loads(output)
    assert result["status"] == "stopped"
    return result


@pytest.mark.usefixtures("spark")
def test_a_bad_row_fails_the_run_with_its_file_and_line_and_nothing_is_visible(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = orders.arrive("bad.jsonl", [{"id": 1, "amount": 1.5}, '{"id": "seven", "amount": 2}'])
    (orders.folder / "orders.toml").write_text(orders.toml())

    monkeypatch.chdir(orders.folder)
    assert main(["run", "--bounded", "orders", "--format", "json"]) == 1
    told = capfd.readouterr()
    assert "Traceback" not in told.out + told.err
    error = json.loads(told.out)["error"]
    assert error["code"] == "bad-row"
    assert f"{bad} line 2" in error["message"]
    tables = orders.in_database("SELECT table_name FROM information_schema.tables WHERE table_name = 'orders'")
    assert tables == [] or orders.ids_in_database() == []


@pytest.mark.usefixtures("spark")
def test_a_column_that_does_not_exist_fails_in_words(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    orders.numbered(range(3))
    (orders.folder / "orders.toml").write_text(orders.toml(sql="SELECT id, amuont FROM source"))

    monkeypatch.chdir(orders.folder)
    assert main(["run", "--bounded", "orders"]) == 2
    told = capfd.readouterr().err
    assert "Traceback" not in told
    assert "error[bad-sql]: " in told
    assert "amuont" in told
    assert "What to do: " in told


@contextmanager
def _started(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([FLOW, *words], cwd=cwd, stdout=pipe, stderr=pipe, text=True) as process:
        deadline = threading.Timer(DEADLINE_SECONDS, process.kill)
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.kill()


def _wait_for(lines: IO[str], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read events until one is wanted; they end when the process does, at the latest at its deadline."""
    seen = []
    for line in lines:
        seen.append(line)
        event: dict[str, Any] = json.loads(line)
        if wanted(event):
            return event
    pytest.fail(f"never seen; the log was: {''.join(seen)}")


def _table(database: Path) -> list[int]:
    with duckdb.connect(str(database), read_only=True) as db:
        return [row[0] for row in db.execute("SELECT order_id FROM orders ORDER BY order_id").fetchall()]
