"""kill -9 at every step of the commit protocol while rows wait in a join, alone or before a window, with every state
store and with a disk that is gone afterwards: a restart gives the same rows as an undisturbed run."""

import os
import shutil
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from ematix_flow.streams.steps import STEPS
from tests.crash.test_kill_at_each_step import PLACES, Case, killed, store_of
from tests.orders import Orders, aggregation

pytestmark = pytest.mark.usefixtures("spark")

SOURCES = """
pipeline_name = "orders"
[[sources]]
name = "{name}"
kind = "object_store_local"
path = "{folder}"
query = "{name}"
format = "json_lines"
schema = "id long, at timestamp"
event_time_column = "at"
max_files_per_batch = 1
"""
JOIN = """
[transform.join]
left_source = "bought"
right_source = "paid"
left_keys = ["id"]
right_keys = ["id"]
time_window_ms = 60000
kind = "full_outer"
"""
WINDOW = """
[transform.window]
kind = "tumbling"
duration_ms = 120000
group_by = ["left_id"]
"""
WINDOW += aggregation("count", "n")
# By batch: what was bought and what was paid, as key and minute. Rows meet in one batch, over batches, or never.
BATCHES = (
    ([(1, 0), (2, 0)], [(1, 0), (9, 0)]),
    ([(3, 1), (4, 1)], [(2, 1), (3, 2)]),
    ([(5, 4)], [(4, 2), (5, 5)]),
    ([(6, 9)], [(6, 8), (7, 9)]),
)
PAIRS = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (None, 7), (None, 9)]
# A pair counts when its later row happened.
WINDOWS = [(0, 1), (0, None), (0, 2), (2, 3), (2, 4), (4, 5), (8, 6), (8, None)]


@dataclass(frozen=True)
class JoinCase:
    store: str
    disk: str
    then: str
    point: str

    def __str__(self) -> str:
        return f"{self.store}, {self.disk}, {self.then}, {self.point}"


# Only the last stage has this target; the first one meets the steps before it does.
LAST_STAGE = "apply/orders"
OFTEN = (JoinCase("postgres", "disk gone", "join, window", LAST_STAGE),)
CASES = [
    *(JoinCase(*place, then, point) for place, then, point in product(PLACES, ("join", "join, window"), STEPS)),
    *(JoinCase(*place, "join, window", LAST_STAGE) for place in PLACES),
]


def feed(orders: Orders) -> None:
    for number, sides in enumerate(BATCHES):
        for name, rows in zip(("bought", "paid"), sides, strict=True):
            (orders.inbox / name).mkdir(exist_ok=True)
            events = [{"id": id, "at": f"2026-01-01T00:{minute:02}:00Z"} for id, minute in rows]
            orders.arrive(f"{name}/{number}.jsonl", events)


def declared(orders: Orders, case: JoinCase, store: dict[str, Any]) -> str:
    one, other = (SOURCES.format(name=name, folder=orders.inbox) for name in ("bought", "paid"))
    other = other.replace('pipeline_name = "orders"\n', "")
    target = f'[target]\nkind = "duckdb"\npath = "{orders.database}"\n[target.table]\nname = "orders"\n'
    kept = "[state_store]\n" + "".join(f'{name} = "{value}"\n' for name, value in store.items() if value)
    return one + other + target + kept + JOIN + (WINDOW if "window" in case.then else "")


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=[pytest.mark.slow] * (case not in OFTEN)) for case in CASES]
)
def test_nothing_is_lost_and_nothing_is_doubled(orders: Orders, case: JoinCase, request: pytest.FixtureRequest) -> None:
    feed(orders)
    like = Case(case.store, case.disk, "stateful", case.point, "append", ("duckdb",))
    store = store_of(like, orders, request)
    place = {"kind": store.kind, "url": store.url, "path": store.path}
    declaration = declared(orders, case, place)

    killed(declaration, like, orders.folder)
    if case.disk == "disk gone":
        shutil.rmtree(os.environ["EMATIX_FLOW_HOME"])
    orders.run_text(declaration)

    if "window" in case.then:
        query = "SELECT minute(window_start), left_id, n FROM orders ORDER BY ALL"
        assert orders.in_database(query) == sorted(
            [(*one, 1) for one in WINDOWS], key=lambda one: (one[0], one[1] or 9)
        )
    else:
        pairs = orders.in_database("SELECT left_id, right_id FROM orders")
        assert sorted(pairs, key=str) == sorted(PAIRS, key=str)
