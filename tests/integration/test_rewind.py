"""A pipeline goes back on real Spark: it reads what came after, with the state of then, and shows it anew."""

import os
import shutil
from contextlib import closing

import pytest

from ematix_flow.ops.cli import main
from ematix_flow.specs import StateStore
from ematix_flow.state.batches import Batches
from ematix_flow.state.memory import Memory
from ematix_flow.streams.run import run_spec
from ematix_flow.toml import load_toml
from tests.orders import PER_MINUTE, Orders

DECLARED = """
[state_store]
kind = "postgres"
url = "{url}"
[spark.conf]
"spark.sql.streaming.fileSource.log.compactInterval" = "2"
"""


@pytest.mark.usefixtures("spark")
def test_batches_are_repeated_with_the_state_of_then_though_the_disk_is_gone(
    orders: Orders, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for minute in range(4):
        orders.arrive(f"{minute}.jsonl", [{"at": f"2026-01-01T00:0{minute}:30Z", "shop": "a", "amount": minute}] * 2)
    declaration = orders.toml(
        source="max_files_per_batch = 1",
        schema="at timestamp, shop string, amount double",
        targets=("sqlite", "json_lines"),
        table='mode = "merge"\nkeys = ["window_start", "shop"]',
        more=DECLARED.format(url=postgres_url) + PER_MINUTE,
    )
    (spec,) = load_toml(text=declaration)
    run_spec(spec, bounded=True, flush=False)
    windows, shown = sorted(orders.in_sqlite()), {file.name: file.read_bytes() for file in orders.files()}
    assert len(windows) == len(orders.in_files()) == 3, "the fourth is still open"

    shutil.rmtree(os.environ["EMATIX_FLOW_HOME"])
    (orders.folder / "orders.toml").write_text(declaration)
    monkeypatch.chdir(orders.folder)
    assert main(["rewind", "orders", "--to-batch", "2", "--yes"]) == 0
    assert "batches 3 to 4, planned from " in capsys.readouterr().out
    again = run_spec(spec, bounded=True, flush=False)

    assert (again.batches, again.rows_consumed) == (2, 2)
    assert sorted(orders.in_sqlite()) == windows
    assert {file.name: file.read_bytes() for file in orders.files()}.items() >= shown.items()
    # Batch 2 has emitted the first window, and held the next two.
    assert sorted(row["window_start"][14:16] for row in orders.in_files()) == ["00", "01", "01", "02", "02"]
    with closing(Memory("orders", StateStore(kind="postgres", url=postgres_url))) as memory:
        assert Batches.of(memory).committed == list(range(5))
