"""What step 4 costs when the state store is elsewhere: `python -m bench.saving`.

First whole batches of one row each, from a file into DuckDB, with the state on the disk, in Postgres and in Delta; then
saves alone, of batches that change 0, 1 and 50 MB of operator state. Postgres flushes its transactions to the disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from ematix_flow.specs import StateStore
from ematix_flow.state.memory import Memory
from ematix_flow.state.store import Store
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.toml import load_toml
from tests.orders import Orders
from tests.services.postgres import own_postgres

_WARM_UP = 5
_PARTITIONS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40, help="batches of one row for each store")
    parser.add_argument("--saves", type=int, default=15, help="saves of each size")
    options = parser.parse_args()
    with own_postgres(durable=True) as server, tempfile.TemporaryDirectory() as place:
        os.environ["EMATIX_FLOW_HOME"] = f"{place}/home"
        stores = {
            "local": StateStore(),
            "postgres": StateStore(kind="postgres", url=server.url),
            "delta": StateStore(kind="delta", path=f"{place}/vault"),
        }
        print(f"{'batch of one row':<20}{'whole batch':>14}{'save':>12}{'more than local':>18}")
        seconds = _batches(Path(place), stores, options.batches)
        local = statistics.median(total for total, _ in seconds["local"])
        for name, found in seconds.items():
            total, save = (statistics.median(values) * 1000 for values in zip(*found, strict=True))
            print(f"{name:<20}{total:>11.0f} ms{save:>9.1f} ms{total - local * 1000:>+15.0f} ms")
        print(f"\n{'save alone':<20}{'0 MB':>22}{'1 MB':>22}{'50 MB':>22}")
        for name, store in stores.items():
            cells = [_saves(store, Path(place) / f"{name}{size}", size << 20, options.saves) for size in (0, 1, 50)]
            print(f"{name:<20}" + "".join(f"{ms:>9.1f} ms {size:>6.2f} MB" for ms, size in cells))


def _batches(place: Path, stores: dict[str, StateStore], batches: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each batch, and of its save."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    for name, store in stores.items():
        folder = place / name
        folder.mkdir()
        orders = Orders(folder)
        orders.numbered(*(range(i, i + 1) for i in range(batches + _WARM_UP)))
        where = "".join(f'{key} = "{value}"\n' for key, value in (("url", store.url), ("path", store.path)) if value)
        more = f'[state_store]\nkind = "{store.kind}"\n{where}'
        (spec,) = load_toml(None, orders.toml(name=name, source="max_files_per_batch = 1", more=more))
        reports: list[BatchReport] = []
        run_spec(spec, bounded=True, on_batch=reports.append)
        seconds[name] = [(sum(r.seconds.values()), r.seconds["save"]) for r in reports[_WARM_UP:]]
    return seconds


def _saves(declared: StateStore, folder: Path, size: int, saves: int) -> tuple[float, float]:
    """Median of milliseconds, and the MB of one save as the checkpoint has them."""
    memory = Memory(folder.name, declared)
    took = []
    with closing(Store(folder.name, folder, memory.vault, 60)) as store:
        for batch in range(saves):
            files = {f"offsets/{batch}": 700, f"sources/0/{batch}": 200, f"commits/{batch - 1}": 40}
            files |= {f"state/0/{part}/{batch + 1}.delta": size // _PARTITIONS for part in range(_PARTITIONS) if size}
            for path, length in files.items():
                file = store.checkpoint / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(os.urandom(length))
            began = time.perf_counter()
            store.save(batch)
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000, sum(files.values()) / 1e6


if __name__ == "__main__":
    main()
