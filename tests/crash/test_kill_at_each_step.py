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
from tests.crash.model import BATCHES, in_files, in_table
from tests.orders import PER_MINUTE, Orders

pytestmark = pytest.mark.usefixtures("spark")

FILES = "json_lines"
QUICK = ("sqlite", "duckdb", "postgres", "mysql", FILES)
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

    def __str__(self) -> str:
        return f"{self.store}, {self.disk}, {self.operator}, {self.point}, {self.mode}"


def often() -> list[Case]:
    """What is tried every time: each point with one of these, in one of the places. Delta as a target takes long."""
    declared = [
        ("stateless", "scd2", ("postgres", FILES)),
        ("stateful", "merge", ("mysql", FILES)),
        ("stateless", "truncate", ("sqlite", FILES)),
        ("stateful", "append", ("duckdb", FILES)),
    ]
    cases = []
    for number, point in enumerate((*STEPS, *INSIDE)):
        (operator, mode, targets), place = declared[number % 4], PLACES[-1 - number % len(PLACES)]
        cases.append(Case(*place, operator, point, mode, targets))
    return [*cases, Case("postgres", "disk gone", "stateless", "apply/orders_2", "append", ("delta_local", "sqlite"))]


def everything() -> list[Case]:
    """Every step, with and without state, in every place with the quick targets, and in one of them with Delta."""
    return [
        Case(*place, operator, point, MODES[operator][number % len(MODES[operator])], targets)
        for operator, (number, point) in product(MODES, enumerate(STEPS))
        for place, targets in [*((place, QUICK) for place in PLACES), (PLACES[number % len(PLACES)], ("delta_local",))]
    ]


# Each of these shows little that a quicker one does not.
SELDOM = ("compute", "save", "divert", "release", "apply/object_store_local", "apply/before-fence", "apply/orders_2")
CASES = [
    *(
        pytest.param(case, id=f"{case}, {case.targets[0]}", marks=[pytest.mark.slow] * (case.point in SELDOM))
        for case in often()
    ),
    *(pytest.param(case, id=f"{case}, {case.targets[0]}", marks=pytest.mark.slow) for case in everything()),
]


def declared(orders: Orders, case: Case, store: StateStore) -> str:
    keys = {"stateless": '["id"]', "stateful": '["window_start", "shop"]'}[case.operator]
    # Two folders make two files per batch, so that an apply can be cut in the middle.
    files = FILES + ('\npartition_by = ["part"]' if case.operator == "stateless" else "")
    place = {"url": store.url, "path": store.path, "schema": store.schema if store.kind == "postgres" else None}
    return orders.toml(
        schema="id long, v string, shop string, amount double, at timestamp",
        source='max_files_per_batch = 1\nevent_time_column = "at"',
        sql="SELECT id, v, id % 2 AS part FROM source" if case.operator == "stateless" else None,
        on_error="dlq",
        targets=tuple(files if target == FILES else target for target in case.targets),
        table=f'mode = "{case.mode}"' + (f"\nkeys = {keys}" if case.mode in {"merge", "scd2"} else ""),
        more=(PER_MINUTE if case.operator == "stateful" else "")
        + f'[state_store]\nkind = "{store.kind}"\n'
        + "".join(f'{k} = "{v}"\n' for k, v in place.items() if v),
    )


def feed(orders: Orders) -> None:
    """One file per batch, and a bad row in the second."""
    for number, batch in enumerate(BATCHES):
        orders.arrive(f"{number}.jsonl", [*batch, *(["broken"] if number == 1 else [])])


def contents(orders: Orders, case: Case) -> dict[str, Counter[str]]:
    """By target, without the times at which rows were loaded."""
    columns = {"stateless": "id, v", "stateful": "window_start, window_end, shop, orders, amount"}[case.operator]
    versions = ", valid_from, valid_to, is_current" if case.mode == "scd2" else ""
    readers = {
        "duckdb": orders.in_database,
        "sqlite": orders.in_sqlite,
        "postgres": orders.in_postgres,
        "mysql": orders.in_mysql,
        "delta_local": orders.in_delta,
        FILES: lambda _: [tuple(row.get(name) for name in columns.split(", ")) for row in orders.in_files()],
    }
    return {name: comparable(readers[name](f"SELECT {columns}{versions} FROM orders")) for name in case.targets}


def expected(case: Case) -> dict[str, Counter[str]]:
    table, files = in_table(case.operator, case.mode), in_files(case.operator)
    return {name: comparable(files if name == FILES else table) for name in case.targets}


def comparable(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(" ".join(map(_plain, row)) for row in rows)


def _plain(value: Any) -> str:
    """As text: SQLite keeps times as texts and truth as numbers."""
    text = value.strftime("%Y-%m-%dT%H:%M:%S") if hasattr(value, "strftime") else str(value)
    return {"True": "1", "False": "0"}.get(text, text[:19] if text.startswith("2026-") else text)


def killed(declaration: str, case: Case, folder: Path) -> None:
    """Run the pipeline in a process of its own that dies in its second batch."""
    died = subprocess.run(
        [sys.executable, "-m", "tests.crash.victim"],
        input=declaration.encode(),
        cwd=folder,
        env=os.environ | {CRASH_AT: f"{case.point}@1", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()


def store_of(case: Case, orders: Orders, request: pytest.FixtureRequest) -> StateStore:
    match case.store:
        case "postgres":
            return StateStore(kind="postgres", url=request.getfixturevalue("postgres_url"), schema="flow")
        case "delta":
            return StateStore(kind="delta", path=str(orders.folder / "vault"))
    return StateStore()


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_and_nothing_is_doubled(orders: Orders, case: Case, request: pytest.FixtureRequest) -> None:
    feed(orders)
    store = store_of(case, orders, request)
    declaration = declared(orders, case, store)

    killed(declaration, case, orders.folder)
    if case.disk == "disk gone":
        shutil.rmtree(os.environ["EMATIX_FLOW_HOME"])
    orders.run_text(declaration)

    assert contents(orders, case) == expected(case)
    with closing(Memory("orders", store)) as memory, closing(memory.dead_letters()) as letters:
        late = ["late"] if case.operator == "stateful" else []
        assert sorted(letter.stage for letter in letters.all()) == ["decode", *late]
