"""JSON lines -> Parquet and -> DuckDB: this product against plain PySpark doing the same work.

Each contender runs in a process of its own, with the same master and memory; the clock starts when Spark is up. They
take turns, and each round's ratio compares two runs that stood next to each other in time.

    python -m bench.files [--rows 5000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CONTENDERS = ("flow", "pyspark")
TARGETS = ("parquet", "duckdb")
FILES = 10
SMALL_BATCHES = 40


def main() -> None:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="ematix-flow-bench-"))
    try:
        _generate(folder / "large", options.rows // FILES, FILES)
        _generate(folder / "small", 1, SMALL_BATCHES)
        size = sum(f.stat().st_size for f in (folder / "large").iterdir()) / 1e6
        machine = f"{os.cpu_count()} cores {platform.machine()}"
        print(f"{options.rows:,} JSON lines, {size:,.0f} MB in {FILES} files; {machine}\n")
        print(f"{'':24}{'ematix-flow':>16}{'plain PySpark':>16}{'ratio':>9}")
        for target in TARGETS:
            _compare(folder, target, options)
    finally:
        shutil.rmtree(folder)


def _compare(folder: Path, target: str, options: argparse.Namespace) -> None:
    rounds = [{c: _run(c, target, folder) for c in CONTENDERS} for _ in range(options.rounds)]
    ours, plain = ([r[c] for r in rounds] for c in CONTENDERS)
    ratio = statistics.median(p["seconds"] / o["seconds"] for o, p in zip(ours, plain, strict=True))
    per_second = [options.rows / statistics.median(r["seconds"] for r in side) for side in (ours, plain)]
    batch = [statistics.median(r["small_batch_ms"] for r in side) for side in (ours, plain)]
    memory = [statistics.median(r["memory_mb"] for r in side) for side in (ours, plain)]
    print(f"-> {target:21}{per_second[0]:>10,.0f} r/s{per_second[1]:>12,.0f} r/s{ratio:>8.2f}x")
    print(f"   batch of one row     {batch[0]:>13,.0f} ms{batch[1]:>13,.0f} ms{batch[1] / batch[0]:>8.2f}x")
    print(f"   peak memory          {memory[0]:>13,.0f} MB{memory[1]:>13,.0f} MB")
    if "steps" in ours[-1]:
        steps = ", ".join(f"{name} {seconds:.2f}" for name, seconds in ours[-1]["steps"].items() if seconds >= 0.005)
        print(f"   where our time went  {steps} s", flush=True)


def _run(contender: str, target: str, folder: Path) -> dict:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [sys.executable, "-m", f"bench.contender_{contender}", target, str(folder), work]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"EMATIX_FLOW_HOME": work}
        )
    if done.returncode:
        sys.exit(f"{contender} -> {target} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _generate(folder: Path, rows: int, files: int) -> None:
    """Orders as a shop would send them: numbers, a time, short texts."""
    folder.mkdir()
    random = np.random.default_rng(7)
    countries = np.array(["NO", "DE", "FR", "IT", "US", "JP"])
    for number in range(files):
        ids = np.arange(number * rows, (number + 1) * rows)
        cents = random.integers(100, 100_000, rows)
        country = countries[random.integers(0, len(countries), rows)]
        second = np.sort(random.integers(0, 86_400, rows))
        with (folder / f"{number:03d}.jsonl").open("w", encoding="utf-8") as out:
            out.writelines(
                f'{{"id": {i}, "customer": "c{c % 9973}", "amount": {c / 100}, "country": "{k}", '
                f'"paid": {"true" if c % 3 else "false"}, '
                f'"ts": "2026-01-01T{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}Z"}}\n'
                for i, c, k, s in zip(ids.tolist(), cents.tolist(), country.tolist(), second.tolist(), strict=True)
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
