"""This product, as a user would declare the work."""

import statistics
import sys
import time
from collections import Counter
from itertools import pairwise

from bench.measure import SCHEMA, peak_memory_mb, report
from ematix_flow.specs import PipelineSpec, SparkSettings
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.session import session_for
from ematix_flow.toml import load_toml


def declared(name: str, target: str, folder: str, work: str, limit: str = "") -> PipelineSpec:
    place = {
        "parquet": f'[target]\nkind = "object_store_local"\npath = "{work}/{name}"\nformat = "parquet"',
        "duckdb": f'[target]\nkind = "duckdb"\npath = "{work}/{name}.db"\n[target.table]\nname = "orders"',
    }
    source = (
        f'kind = "object_store_local"\npath = "{folder}/{name}"\nformat = "json_lines"\nschema = "{SCHEMA}"\n{limit}'
    )
    (spec,) = load_toml(text=f'pipeline_name = "{name}"\n[source]\n{source}\n{place[target]}')
    return spec


def main(target: str, folder: str, work: str) -> None:
    session_for(SparkSettings(master="local[2]", conf={"spark.driver.memory": "2g"}))
    batches: list[float] = []
    run_spec(
        declared("small", target, folder, work, "max_files_per_batch = 1"),
        bounded=True,
        on_batch=lambda _: batches.append(time.perf_counter()),
    )
    steps: Counter[str] = Counter()
    began = time.perf_counter()
    run_spec(declared("large", target, folder, work), bounded=True, on_batch=lambda batch: steps.update(batch.seconds))
    seconds = time.perf_counter() - began
    gaps = [1000 * (b - a) for a, b in pairwise(batches)]
    report(seconds=seconds, small_batch_ms=statistics.median(gaps[10:]), memory_mb=peak_memory_mb(), steps=dict(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
