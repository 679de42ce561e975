"""Tumbling windows over files: this product as a daemon would run it, and ematix-flow 1.0.0, the Rust engine whose API
it follows, on the same Parquet files, each in a process of its own, one after the other.

    python -m bench.original [--rows 20000000]

The original is installed from the package index into a temporary environment, because both are imported by one name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import peak_memory_mb, report
from tests.orders import aggregation

VERSION = "1.0.0"
FILES = 40
PER_SECOND = 100_000
DEADLINE_SECONDS = 300
WINDOW = """
[transform.window]
kind = "tumbling"
duration_ms = 10000
group_by = ["key"]
max_groups_per_window = 1000000
"""
WINDOW += aggregation("count", "n") + aggregation("sum", "total", column="amount")
# The original has no end of input, and counts rows before it works on them: it is done when its counters stand still,
# whether or not it has read everything.
ORIGINAL = r"""
import json, re, sys, threading, time, urllib.request
from ematix_flow import run_pipeline
text, rows, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
threading.Thread(target=run_pipeline, kwargs={"config_str": text, "metrics_port": port}, daemon=True).start()
began = ended = time.perf_counter()
read = late = 0
while time.perf_counter() - ended < (3 if read >= rows else 30):
    time.sleep(0.02)
    try:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    except OSError:
        continue
    counts = {name: int(float(n)) for name, n in re.findall(r"^ematix_streaming_(\w+)\S* ([0-9.e+]+)$", page, re.M)}
    now = counts.get("rows_consumed_total", 0), counts.get("late_rows_dropped_total", 0)
    if now != (read, late):
        (read, late), ended = now, time.perf_counter()
seen = [(began, 0), (ended, read)]
memory = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")][0] / 1024
print(json.dumps({"seen": seen, "memory_mb": memory, "late": late}))
import os; os._exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--ours", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        _ours(*options.ours)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-original-"))
    try:
        print(f"{options.rows:,} rows in {FILES} Parquet files, windows of 10 s; {os.cpu_count()} cores")
        for keys in (1_000, 1_000_000):
            _compare(folder, options.rows, keys)
    finally:
        shutil.rmtree(folder)


def _compare(folder: Path, rows: int, keys: int) -> None:
    inbox = folder / f"in-{keys}"
    _files(inbox, rows, keys)
    work = folder / f"out-{keys}"
    ours = answer_of(["-m", "bench.original", "--ours", str(inbox), str(work)])
    theirs = original(_declared(inbox, folder / f"original-{keys}", ""), rows, folder / "original")
    for name, facts in (("this product", ours), (f"ematix-flow {VERSION}", theirs)):
        speed, memory = f"{_steady(facts['seen']):,.0f} rows/s", f"{facts['memory_mb']:,.0f} MB"
        print(f"  {keys:>9,} keys  {name:20} {speed:>18} {memory:>10}  {facts['late']:,} rows lost as late", flush=True)
    print(f"  {'':>9}       state {ours['state_bytes'] / 1e6:,.1f} MB")


def _steady(seen: list[tuple[float, int]]) -> float:
    """Rows per second in the second half, when everything is warm; in all, if they were read in one go."""
    (began, before), (ended, after) = seen[(len(seen) - 1) // 2], seen[-1]
    return (after - before) / (ended - began)


def original(text: str, rows: int, environment: Path) -> dict[str, Any]:
    """What the original did with a pipeline until it had read so many rows."""
    if not environment.exists():
        venv.create(environment, with_pip=True)
        pip = [str(environment / "bin/pip"), "install", "--quiet", f"ematix-flow=={VERSION}"]
        subprocess.run(pip, check=True)
    return answer_of(["-P", "-c", ORIGINAL, text, str(rows), "19417"], str(environment / "bin/python"))


def answer_of(arguments: list[str], python: str = sys.executable, deadline: float = DEADLINE_SECONDS) -> dict[str, Any]:
    command = [python, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _ours(inbox: str, work: str) -> None:
    from ematix_flow.streams.run import run_spec
    from ematix_flow.toml import load_toml

    seen = [(time.perf_counter(), 0)]
    held, late = [0], [0]

    def on_batch(batch: Any) -> None:
        if batch.consumed:
            seen.append((time.perf_counter(), batch.consumed + seen[-1][1]))
        held.append(batch.windows.held.state_bytes)
        late.append(sum(batch.windows.late.values()))

    os.environ["EMATIX_FLOW_HOME"] = f"{work}-home"
    limit = 'max_files_per_batch = 4\nschema = "key long, amount long, _event_ts timestamp"'
    run_spec(load_toml(text=_declared(Path(inbox), Path(work), limit))[0], bounded=True, on_batch=on_batch)
    report(seen=seen, memory_mb=peak_memory_mb(), state_bytes=max(held), late=sum(late))


def _declared(inbox: Path, outbox: Path, source: str) -> str:
    outbox.mkdir()
    return f"""
pipeline_name = "windows"
source_query = "in"
[source]
kind = "object_store_local"
path = "{inbox}"
format = "parquet"
{source}
[target]
kind = "object_store_local"
path = "{outbox}"
format = "parquet"
prefix = "out"
{WINDOW}
"""


def _files(inbox: Path, rows: int, keys: int) -> None:
    """In order of time."""
    (inbox / "in").mkdir(parents=True)
    rng, each = np.random.default_rng(7), rows // FILES
    for number in range(FILES):
        at = 1_767_225_600_000_000 + (np.arange(each) + number * each) * (1_000_000 // PER_SECOND)
        columns = {"key": rng.integers(0, keys, each), "amount": rng.integers(0, 1000, each)}
        table = pa.table({**columns, "_event_ts": pa.array(at).cast(pa.timestamp("us", "UTC"))})
        file = inbox / "in" / f"{number:04}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_767_225_600 + number,) * 2)


if __name__ == "__main__":
    main()
