"""kill -9 at every step of the commit protocol, with every state store and every target, with and without operator
state, and with a disk that is gone afterwards: a restart gives the same rows as an undisturbed run."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.specs import StateStore
from ematix_flow.state.memory import Memory
from ematix_flow.streams.steps import CRASH_AT, STEPS
from tests.crash import victim
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")

FILES = "json_lines"
ALL = ("duckdb", "sqlite", "postgres", FILES, "delta_local")
# Points inside `apply`: before a commit or a mark, between two targets, and between two files.
INSIDE = ("apply/before-commit", "apply/object_store_local", "apply/first-file", "apply/before-fence")
MODES = {"stateless": ("append", "merge", "scd2", "truncate"), "stateful": ("append", "merge")}
PLACES = (("local", "disk kept"), *product(("postgres", "delta"), ("disk kept", "disk gone")))


@dataclass(frozen=True)
class Case:
    store: str
    disk: str
    operator: str
    point: str
    mode: str
    targets: tuple[str, ...]

    @property
    def declaration(self) -> tuple[str, str, tuple[str, ...]]:
        return self.operator, self.mode, self.targets

    def __str__(self) -> str:
        return f"{self.store}, {self.disk}, {self.operator}, {self.point}, {self.mode}"


def often() -> list[Case]:
    """What is tried every time: each point with one of these, in one of the places. Delta as a target takes long."""
    declared = [
        ("stateless", "scd2", ("postgres", FILES)),
        ("stateful", "merge", ("duckdb", FILES)),
        ("stateless", "truncate", ("sqlite", FILES)),
        ("stateful", "append", ("postgres", FILES)),
    ]
    cases = []
    for number, point in enumerate((*STEPS, *INSIDE)):
        (operator, mode, targets), place = declared[number % 4], PLACES[-1 - number % len(PLACES)]
        cases.append(Case(*place, operator, point, mode, targets))
    return [*cases, Case("postgres", "disk gone", "stateful", "apply/orders_2", "merge", ("delta_local", "duckdb"))]


def everything() -> list[Case]:
    cells = product(PLACES, MODES, enumerate(STEPS))
    return [
        Case(*place, operator, point, MODES[operator][number % len(MODES[operator])], ALL)
        for place, operator, (number, point) in cells
    ]


CASES = [
    *(pytest.param(case, id=f"{case}, {case.targets[0]}") for case in often()),
    *(pytest.param(case, id=str(case), marks=pytest.mark.slow) for case in everything()),
]


def declared(orders: Orders, case: Case, store: StateStore, name: str = "orders") -> str:
    keys = {"stateless": '["id"]', "stateful": '["window_start", "shop"]'}[case.operator]
    # Two folders make two files per batch, so that an apply can be cut in the middle.
    files = FILES + ('\npartition_by = ["part"]' if case.operator == "stateless" else "")
    place = {"url": store.url, "path": store.path, "schema": store.schema if store.kind == "postgres" else None}
    return orders.toml(
        name=name,
        schema="id long, v string, shop string, amount double, at timestamp",
        source='max_files_per_batch = 1\nevent_time_column = "at"',
        sql="SELECT id, v, id % 2 AS part FROM source" if case.operator == "stateless" else None,
        on_error="dlq",
        targets=tuple(files if target == FILES else target for target in case.targets),
        table=f'mode = "{case.mode}"' + (f"\nkeys = {keys}" if case.mode in {"merge", "scd2"} else ""),
        more=f'[state_store]\nkind = "{store.kind}"\n' + "".join(f'{k} = "{v}"\n' for k, v in place.items() if v),
    )


def feed(orders: Orders) -> None:
    """New keys, changed ones, two versions of a key in one batch, an older event, late for a window, and a bad row."""
    orders.arrive("0.jsonl", [event(i, "a", "00:10") for i in range(6)])
    second = [*(event(i, "b", "01:20") for i in range(3, 8)), event(7, "c", "01:21"), event(0, None, "01:20")]
    orders.arrive("1.jsonl", [*second, "broken"])
    orders.arrive("2.jsonl", [event(4, "old", "00:15"), event(8, "d", "03:30"), event(7, "e", "01:30")])
    orders.arrive("3.jsonl", [event(9, "f", "05:00"), event(4, "g", "04:50")])


def event(key: int, value: str | None, at: str) -> dict[str, Any]:
    return {"id": key, "v": value, "shop": f"s{key % 3}", "amount": key / 2, "at": f"2026-01-01T00:{at}Z"}


def contents(orders: Orders, case: Case) -> dict[str, Counter[str]]:
    """By target. The times at which rows were loaded differ."""
    columns = {"stateless": "id, v, part", "stateful": "window_start, window_end, shop, orders, amount"}[case.operator]
    columns += ", valid_from, valid_to, is_current, row_hash" if case.mode == "scd2" else ""
    readers = {
        "duckdb": orders.in_database,
        "sqlite": orders.in_sqlite,
        "postgres": orders.in_postgres,
        "delta_local": orders.in_delta,
    }
    tables = {name: readers[name](f"SELECT {columns} FROM orders") for name in case.targets if name in readers}
    found = {name: Counter(" ".join(map(_plain, row)) for row in table) for name, table in tables.items()}
    return {**found, "files": Counter(str(sorted(row.items())) for row in orders.in_files())}


def _plain(value: Any) -> str:
    """As text: SQLite keeps times as texts and truth as numbers."""
    text = value.strftime("%Y-%m-%dT%H:%M:%S") if hasattr(value, "strftime") else str(value)
    return {"True": "1", "False": "0"}.get(text, text[:19] if text.startswith("2026-") else text)


def killed(declaration: str, case: Case, folder: Path) -> None:
    """Run the pipeline in a process of its own that dies in its second batch."""
    died = subprocess.run(
        [sys.executable, "-m", "tests.crash.victim", case.operator],
        input=declaration.encode(),
        cwd=folder,
        env=os.environ | {CRASH_AT: f"{case.point}@1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a declaration gives without a crash, computed once."""
    known: dict[Any, dict[str, Counter[str]]] = {}

    def of(case: Case) -> dict[str, Counter[str]]:
        if case.declaration not in known:
            orders = Orders(tmp_path_factory.mktemp(case.mode))
            feed(orders)
            store = StateStore(kind="local", path=str(orders.folder / "state"))
            victim.run(declared(orders, case, store, name="undisturbed"), case.operator)
            known[case.declaration] = contents(orders, case)
        return known[case.declaration]

    return of


def store_of(case: Case, orders: Orders, request: pytest.FixtureRequest) -> StateStore:
    match case.store:
        case "postgres":
            return StateStore(kind="postgres", url=request.getfixturevalue("postgres_url"), schema="flow")
        case "delta":
            return StateStore(kind="delta", path=str(orders.folder / "vault"))
    return StateStore()


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_and_nothing_is_doubled(
    orders: Orders, undisturbed: Any, case: Case, request: pytest.FixtureRequest
) -> None:
    feed(orders)
    store = store_of(case, orders, request)
    declaration = declared(orders, case, store)

    killed(declaration, case, orders.folder)
    if case.disk == "disk gone":
        shutil.rmtree(os.environ["EMATIX_FLOW_HOME"])
    victim.run(declaration, case.operator)

    after = contents(orders, case)
    assert after == undisturbed(case)
    tables = [rows for name, rows in after.items() if name != "files"]
    assert all(rows == tables[0] for rows in tables)
    with closing(Memory("orders", store)) as memory, closing(memory.dead_letters()) as letters:
        late = ["late"] if case.operator == "stateful" else []
        assert sorted(letter.stage for letter in letters.all()) == ["decode", *late]
