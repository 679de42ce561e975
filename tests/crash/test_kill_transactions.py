"""kill -9 while changes wait for the rest of their transaction: they are neither lost nor applied twice nor in part,
also if the disk is gone afterwards."""

import os
import shutil

import pytest

from ematix_flow.streams.steps import STEPS
from tests.crash.test_kill_at_each_step import Case, killed, store_of
from tests.integration.test_transactions import ORDERS, Transaction
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = "id long, amount long"
PLACES = {"local": "disk kept", "postgres": "disk gone", "delta": "disk gone"}
# In the fast tier, the point after which what is held is the most of what there is.
OFTEN = ("postgres", "apply")
CASES = [
    pytest.param(store, point, id=f"{store} at {point}", marks=[pytest.mark.slow] * ((store, point) != OFTEN))
    for store in PLACES
    for point in (*STEPS[1:], "apply/before-commit")
]


@pytest.mark.parametrize(("store", "point"), CASES)
def test_a_transaction_that_waits_is_applied_once_and_whole(
    orders: Orders, store: str, point: str, request: pytest.FixtureRequest
) -> None:
    """The process dies in the second batch, in which one transaction becomes complete and another one grows."""
    one, two = Transaction(1), Transaction(2)
    first = [one.change(ORDERS, "c", {"id": id, "amount": 1}) for id in range(4)]
    second = [two.change(ORDERS, "u", {"id": id, "amount": 2}) for id in range(3, 7)]
    orders.arrive("0.jsonl", [one.begin(), *first[:2], two.begin(), second[0]])
    orders.arrive("1.jsonl", [*first[2:], one.end(), second[1]])
    case = Case(store, PLACES[store], "stateless", point, "merge", ("duckdb",))
    place = store_of(case, orders, request)
    kept = {"kind": place.kind, "url": place.url, "path": place.path}
    text = orders.toml(
        schema=SCHEMA,
        source="max_files_per_batch = 1",
        table='mode = "merge"\nkeys = ["id"]',
        more="[transform.cdc]\ntransactional = true\n[state_store]\n"
        + "".join(f'{key} = "{value}"\n' for key, value in kept.items() if value),
    )
    killed(text, case, orders.folder)
    if case.disk == "disk gone":
        shutil.rmtree(os.environ["EMATIX_FLOW_HOME"])
    again = orders.run_text(text)
    whole = [(id, 1) for id in range(4)]
    assert orders.in_database() == whole
    assert again.held_changes == 2
    orders.arrive("2.jsonl", second[2:])
    assert orders.run_text(text).held_changes == 4
    assert orders.in_database() == whole
    orders.arrive("3.jsonl", [two.end()])
    last = orders.run_text(text)
    assert orders.in_database() == [*whole[:3], *((id, 2) for id in range(3, 7))]
    assert (last.held_changes, last.changes["updates"]) == (0, 4)
