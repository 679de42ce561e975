"""Where Spark keeps the states of operators: RocksDB with changelogs against the HDFS-backed provider.

An operator's states are few and large, one per group of keys, and each is written whole when it changes. Every run is a
process of its own: some batches, each changing all or some of the states, then a restart that loads them. Snapshots are
written by Spark's maintenance thread, here every few seconds after ten batches, otherwise once a minute after fifty.

    python -m bench.state_providers [--batches 25] [--files]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from bench.measure import peak_memory_mb, report
from ematix_flow.specs import SparkSettings
from ematix_flow.state.kernel import Operator, Step
from ematix_flow.streams.session import session_for
from ematix_flow.streams.stateful import input_of, stateful

_STATE = "org.apache.spark.sql.execution.streaming.state"
PROVIDERS = {
    "hdfs": {"providerClass": f"{_STATE}.HDFSBackedStateStoreProvider"},
    "rocksdb": {
        "providerClass": f"{_STATE}.RocksDBStateStoreProvider",
        "rocksdb.changelogCheckpointing.enabled": "true",
    },
}
MAINTENANCE_MS = 2_000
# States, their size in KB, and how many of them a batch changes.
CASES = ((8, 50, 8), (64, 50, 64), (64, 500, 64), (64, 500, 8), (16, 5_000, 16), (16, 5_000, 2))


@dataclass(frozen=True)
class Holding:
    """Holds numbers, and other numbers after each row."""

    size: int
    name: ClassVar[str] = "holding"
    state_version: ClassVar[int] = 1

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        # Numbers below a million in eight bytes: as compressible as keys and counts are.
        numbers = np.random.default_rng().integers(0, 1_000_000, self.size // 8)
        return Step(pa.table({"n": numbers}), pa.table({"rows": [len(rows)]}), rows.slice(0, 0), None)

    def describe(self) -> Mapping[str, str]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--files", action="store_true", help="also list the files of each batch of one small run")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        provider, groups, size, changed = options.one
        _measure(provider, int(groups), int(size), int(changed), options.batches, listing=options.files)
        return
    if options.files:
        for provider in PROVIDERS:
            _run(provider, 4, 50, 4, 14, listing=True)
        return
    print(f"{os.cpu_count()} cores; medians over {options.batches} batches; snapshots: over all of the run\n")
    heads = (
        "changed",
        "of",
        "KB each",
        "provider",
        "batch",
        "JVM's CPU",
        "deltas/batch",
        "snapshots",
        "heap",
        "memory",
        "load",
    )
    print("".join(f"{head:>13}" for head in heads))
    for groups, size, changed in CASES:
        for provider in PROVIDERS:
            found = _run(provider, groups, size, changed, options.batches, listing=False)
            cells = [f"{found['batch_ms']:,.0f} ms", f"{found['cpu_ms']:,.0f} ms"]
            cells += [f"{found['delta_mb']:.2f} MB", f"{found['snapshot_mb']:,.0f} MB"]
            cells += [f"{found['heap_mb']:,.0f} MB", f"{found['memory_mb']:,.0f} MB", f"{found['load_ms']:,.0f} ms"]
            print("".join(f"{c:>13}" for c in (changed, groups, size, provider, *cells)), flush=True)


def _run(provider: str, groups: int, size: int, changed: int, batches: int, *, listing: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.state_providers", "--batches", str(batches)]
    command += ["--one", provider, str(groups), str(size), str(changed), *(["--files"] if listing else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    if listing:
        print(f"{provider}\n{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def _measure(provider: str, groups: int, size: int, changed: int, batches: int, *, listing: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ematix-flow-bench-"))
    os.environ["EMATIX_FLOW_HOME"] = str(folder / "home")
    try:
        conf = {f"spark.sql.streaming.stateStore.{key}": value for key, value in PROVIDERS[provider].items()}
        conf["spark.sql.streaming.stateStore.maintenanceInterval"] = f"{MAINTENANCE_MS}ms"
        conf["spark.sql.streaming.stateStore.minDeltasForSnapshot"] = "10"
        session = session_for(SparkSettings(master="local[2]"), conf=conf)
        run = _Run(session, folder, groups, size * 1000, changed, listing=listing)
        run.batches(1, groups)
        began = _cpu_ms(session)
        run.batches(batches, changed)
        time.sleep(2 * MAINTENANCE_MS / 1000)  # for the last snapshot
        run.look("later")
        cpu = (_cpu_ms(session) - began) / batches
        # The first batch of a restarted query loads the states.
        load = run.batches(3, 1)[0]
        run.weighing = True
        load = max(0.0, load - statistics.median(run.batches(3, 1)[1:]))
        report(
            batch_ms=statistics.median(run.milliseconds[3:-6]),
            cpu_ms=cpu,
            delta_mb=statistics.median(run.bytes_of("delta")[3:-6]) / 1e6,
            snapshot_mb=sum(run.bytes_of("snapshot")) / 1e6,
            heap_mb=run.heap_mb,
            memory_mb=peak_memory_mb(),
            load_ms=load,
        )
    finally:
        shutil.rmtree(folder)


class _Run:
    """A query over small files, each of which touches some of the groups."""

    def __init__(self, session: Any, folder: Path, groups: int, size: int, changed: int, *, listing: bool) -> None:
        self._session, self._folder, self._groups, self._listing = session, folder, groups, listing
        # A group is a pane of a minute, and has one row per batch that changes it.
        self._operator = Operator(
            Holding(size), pa.schema({"rows": pa.int64()}), event_time="at", block_ms=60_000, buckets=1
        )
        self._arrived, self._turn = 0, 0
        self._known: dict[str, tuple[int, int]] = {}
        self._new: list[Counter[str]] = []
        self.milliseconds: list[float] = []
        self.weighing, self.heap_mb = False, 0.0
        (folder / "in").mkdir()

    def batches(self, count: int, changed: int) -> list[float]:
        for _ in range(count):
            minutes = [(self._turn + i) % self._groups for i in range(changed)]
            self._turn += changed
            file = self._folder / "in" / f"{self._arrived}.jsonl"
            file.write_text("".join(f'{{"at": {(30_000_000 + m) * 60_000}}}\n' for m in minutes))
            os.utime(file, (1_767_225_600 + self._arrived,) * 2)
            self._arrived += 1
        rows = self._session.readStream.schema("at long, _flow_error string")
        rows = rows.option("maxFilesPerTrigger", 1).json(str(self._folder / "in"))
        writer = (
            stateful([input_of(rows, self._operator)], self._operator)
            .writeStream.foreachBatch(self._batch)
            .trigger(availableNow=True)
        )
        writer.option("checkpointLocation", str(self._folder / "checkpoint")).start().awaitTermination()
        return self.milliseconds[-count:]

    def _batch(self, rows: Any, number: int) -> None:
        self.look(f"since batch {number - 1} was materialised")
        began = time.perf_counter()
        cached = rows.persist()
        empty = not cached.count()
        took = (time.perf_counter() - began) * 1000
        if not empty:  # A watermark that moved gives a batch without rows.
            self.milliseconds.append(took)
        self.look(f"batch {number} materialised", count=not empty)
        if self.weighing:
            self.heap_mb = _heap_mb(self._session)
        cached.unpersist()

    def bytes_of(self, kind: str) -> list[int]:
        return [new[kind] for new in self._new]

    def look(self, when: str, *, count: bool = True) -> None:
        """Which files under `state` are new or changed since the last look."""
        root = self._folder / "checkpoint" / "state"
        found = {}
        for path in root.rglob("*") if root.exists() else ():
            try:
                facts = path.stat()
            except FileNotFoundError:  # Maintenance removes files meanwhile.
                continue
            if path.is_file():
                found[str(path.relative_to(root))] = (facts.st_size, facts.st_mtime_ns)
        changed = {name: facts for name, facts in found.items() if self._known.get(name) != facts}
        if self._listing:
            notes = [
                f"{'!' if name in self._known else '+'}{name} {facts[0]}" for name, facts in sorted(changed.items())
            ]
            gone = [f"-{name}" for name in sorted(set(self._known) - set(found))]
            print(f"{when}: {'  '.join([*notes, *gone])}", flush=True)
        sizes: Counter[str] = Counter()
        for name, (size, _) in changed.items():
            sizes["delta" if name.removesuffix(".crc").endswith((".delta", ".changelog")) else "snapshot"] += size
        self._known = found
        if when.startswith("batch"):
            if count:
                self._new.append(sizes)
        elif self._new:
            self._new[-1] += sizes


def _cpu_ms(session: Any) -> int:
    """Of the JVM so far; a busy machine does not change it much."""
    return session._jvm.java.lang.ProcessHandle.current().info().totalCpuDuration().get().toMillis()


def _heap_mb(session: Any) -> float:
    """What is left after a collection."""
    runtime = session._jvm.java.lang.Runtime.getRuntime()
    session._jvm.java.lang.System.gc()
    return (runtime.totalMemory() - runtime.freeMemory()) / 1e6


if __name__ == "__main__":
    main()
