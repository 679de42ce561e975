"""One bad row in a hundred, in every batch, against the same rows without: what keeping them as dead letters costs.

Half of the bad rows are no JSON, half fail in the transform. Both runs have the same declaration; they take turns in
one JVM, and each round's ratio compares two runs that stood next to each other in time.

    python -m bench.bad_rows [--rows 2000000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from ematix_flow.specs import SparkSettings
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.session import session_for
from ematix_flow.toml import load_toml

BATCHES = 10
TARGETS = {
    "parquet": 'kind = "object_store_local"\npath = "{work}/out"\nformat = "parquet"',
    "duckdb": 'kind = "duckdb"\npath = "{work}/out.db"\n[target.table]\nname = "orders"',
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ematix-flow-bench-"))
    os.environ["EMATIX_FLOW_HOME"] = str(folder / "home")
    try:
        for name in ("clean", "dirty"):
            _generate(folder / name, options.rows, bad=name == "dirty")
        session_for(SparkSettings(master="local[2]", conf={"spark.driver.memory": "2g"}))
        print(f"{options.rows:,} rows in {BATCHES} batches, on_error = dlq\n")
        print(f"{'':14}{'clean':>14}{'1 % bad':>14}{'costs':>9}")
        for target in TARGETS:
            _run(folder, target, "clean")
            rounds = [[_run(folder, target, name) for name in ("clean", "dirty")] for _ in range(options.rounds)]
            clean, dirty = (options.rows / statistics.median(side) for side in zip(*rounds, strict=True))
            ratio = statistics.median(with_bad / without for without, with_bad in rounds)
            print(f"-> {target:11}{clean:>10,.0f} r/s{dirty:>10,.0f} r/s{ratio:>8.2f}x", flush=True)
    finally:
        shutil.rmtree(folder)


def _run(folder: Path, target: str, name: str) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as work:
        shutil.rmtree(folder / "home", ignore_errors=True)
        (spec,) = load_toml(
            text=f"""
            pipeline_name = "{name}"
            [source]
            kind = "object_store_local"
            path = "{folder}/{name}"
            format = "json_lines"
            schema = "id long, customer string, cents string, ts timestamp"
            max_files_per_batch = 1
            [transform]
            sql = "SELECT id, customer, CAST(cents AS INT) / 100 AS amount, ts FROM source"
            on_error = "dlq"
            [target]
            {TARGETS[target].format(work=work)}
            """
        )
        began = time.perf_counter()
        result = run_spec(spec, bounded=True)
        assert sum(result.dlq_rows.values()) == (result.rows_consumed // 100 if name == "dirty" else 0), result
        return time.perf_counter() - began


def _generate(folder: Path, rows: int, *, bad: bool) -> None:
    folder.mkdir()
    each = rows // BATCHES
    for number in range(BATCHES):
        with (folder / f"{number:03d}.jsonl").open("w", encoding="utf-8") as out:
            for i in range(number * each, (number + 1) * each):
                cents = "n/a" if bad and i % 200 == 0 else i * 7919 % 100_000
                end = "" if bad and i % 200 == 100 else "}"
                out.write(
                    f'{{"id": {i}, "customer": "c{i % 9973}", "cents": "{cents}", "ts": "2026-01-01T00:00:00Z"{end}\n'
                )


if __name__ == "__main__":
    main()
