"""kill -9 at every step of the commit protocol, in every mode, with all targets at once: a restart gives the same rows
as an undisturbed run, and every table the same as the others."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.streams.steps import CRASH_AT, STEPS
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")

MODES = ("append", "truncate", "merge", "scd2")
FILES = 'json_lines\npartition_by = ["part"]'
# Points inside `apply`: before a commit or a mark, between two files, and between two targets.
INSIDE = ("apply/before-commit", "apply/object_store_local", "apply/first-file", "apply/before-fence")
POINTS = (*STEPS, *INSIDE)
# What is tried every time, with two targets: each point with one mode, each mode with several points.
OFTEN = [
    (MODES[number % 4], point, (("duckdb", "sqlite")[number // 4 % 2], FILES)) for number, point in enumerate(POINTS)
]
# Everything with everything. The first Delta commit of a process takes long.
ALL = ("duckdb", "sqlite", "delta_local", FILES)
CASES = [
    *(pytest.param(*case, id="-".join(case[:2])) for case in OFTEN),
    pytest.param("merge", "apply/orders_2", ("delta_local", "duckdb"), id="merge-between-two-tables"),
    *(
        pytest.param(mode, point, ALL, id=f"{mode}-{point}-all", marks=pytest.mark.slow)
        for mode in MODES
        for point in (*POINTS, "apply/orders_2", "apply/orders_3")
    ),
]


def declared(orders: Orders, mode: str, targets: tuple[str, ...], name: str = "orders") -> str:
    return orders.toml(
        name=name,
        schema="id long, v string, at timestamp",
        source='max_files_per_batch = 1\nevent_time_column = "at"',
        # Two folders make two files per batch, so that an apply can be cut in the middle.
        sql="SELECT id, v, id % 2 AS part FROM source",
        on_error="dlq",
        targets=targets,
        table=f'mode = "{mode}"' + ('\nkeys = ["id"]' if mode in {"merge", "scd2"} else ""),
    )


def feed(orders: Orders) -> None:
    """New keys, changed ones, two versions of a key in one batch, an older event, and a bad row."""
    orders.arrive("0.jsonl", [event(i, "a", 10) for i in range(6)])
    orders.arrive(
        "1.jsonl", [*(event(i, "b", 20) for i in range(3, 8)), event(7, "c", 21), event(0, None, 20), "broken"]
    )
    orders.arrive("2.jsonl", [event(4, "old", 15), event(8, "d", 30), event(7, "e", 30)])


def event(key: int, value: str | None, second: int) -> dict[str, Any]:
    return {"id": key, "v": value, "at": f"2026-01-01T00:00:{second}Z"}


def contents(orders: Orders, mode: str, targets: tuple[str, ...]) -> dict[str, Counter[str]]:
    columns = "id, v, part" + (", valid_from, valid_to, is_current, row_hash" if mode == "scd2" else "")
    read = {"duckdb": orders.in_database, "sqlite": orders.in_sqlite, "delta_local": orders.in_delta}
    tables = {name: read[name](f"SELECT {columns} FROM orders") for name in targets if name in read}
    found = {name: Counter(" ".join(map(_plain, row)) for row in table) for name, table in tables.items()}
    files = Counter(str(sorted(row.items())) for row in orders.in_files())
    return {**found, "files": files} if files else found


def _plain(value: Any) -> str:
    """As text: SQLite keeps times as texts and truth as numbers."""
    text = value.strftime("%Y-%m-%dT%H:%M:%S") if hasattr(value, "strftime") else str(value)
    return {"True": "1", "False": "0"}.get(text, text[:19] if text.startswith("2026-") else text)


def killed_at(point: str, declaration: str, folder: Path) -> None:
    """Run the pipeline in a process of its own that dies at `point` of its second batch."""
    program = (
        "import sys; from ematix_flow import run_pipeline; run_pipeline(config_str=sys.stdin.read(), bounded=True)"
    )
    died = subprocess.run(
        [sys.executable, "-c", program],
        input=declaration.encode(),
        cwd=folder,
        env=os.environ | {CRASH_AT: f"{point}@1"},
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a mode gives without a crash, computed once."""
    known: dict[Any, dict[str, Counter[str]]] = {}

    def of(mode: str, targets: tuple[str, ...]) -> dict[str, Counter[str]]:
        if (mode, targets) not in known:
            orders = Orders(tmp_path_factory.mktemp(mode))
            feed(orders)
            orders.run_text(declared(orders, mode, targets, name="undisturbed"))
            known[mode, targets] = contents(orders, mode, targets)
        return known[mode, targets]

    return of


@pytest.mark.parametrize(("mode", "point", "targets"), CASES)
def test_nothing_is_lost_and_nothing_is_doubled(
    orders: Orders, undisturbed: Any, mode: str, point: str, targets: tuple[str, ...]
) -> None:
    feed(orders)
    declaration = declared(orders, mode, targets)

    killed_at(point, declaration, orders.folder)
    result = orders.run_text(declaration)

    after = contents(orders, mode, targets)
    assert after == undisturbed(mode, targets)
    tables = [rows for name, rows in after.items() if name != "files"]
    assert all(rows == tables[0] for rows in tables)
    assert [letter.payload for letter in orders.dead_letters()] == [b"broken"]
    assert result.batches == 2
