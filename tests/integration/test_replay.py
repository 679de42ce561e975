"""Dead letters go through their pipeline again: what is good by now lands once, the rest waits or is parked."""

import json
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ematix_flow.ops.cli import main
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.dead_letters import DeadLetters, Which
from ematix_flow.state.home import dead_letters_of
from ematix_flow.state.store import ReplayStore
from ematix_flow.streams.failures import BatchFailed
from ematix_flow.streams.replay import ReplayResult, replay
from ematix_flow.toml import load_toml
from tests.orders import Orders

STRICT = "SELECT id, CAST(amount AS double) AS amount, CAST(day AS string) AS day FROM source"
LENIENT = STRICT.replace("CAST(amount", "try_cast(amount")
SCHEMA = "id long, amount string, day date"

LINES: list[dict[str, Any] | str] = [
    {"id": 1, "amount": "1.5"},
    {"id": 2, "amount": "two"},
    '{"id": 3, "amount": ',
    {"id": 4, "amount": "four"},
]

pytestmark = pytest.mark.usefixtures("spark")


def declared(orders: Orders, **declaration: Any) -> PipelineSpec:
    (spec,) = load_toml(text=orders.toml(**({"schema": SCHEMA, "on_error": "dlq"} | declaration)))
    return spec


def letters(orders: Orders) -> list[tuple[str, str, int, bytes | None]]:
    return sorted((one.stage, one.status, one.attempt, one.payload) for one in orders.dead_letters())


def test_a_corrected_transform_takes_the_letters_and_the_others_are_parked_in_the_end(
    orders: Orders, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What the name of the folder says is no part of the line.
    (orders.inbox / "day=2026-01-02").mkdir()
    orders.arrive("day=2026-01-02/a.jsonl", LINES)
    assert orders.run(schema=SCHEMA, sql=STRICT, on_error="dlq").dlq_rows == {"decode": 1, "transform": 2}
    ids = {one.id for one in orders.dead_letters()}

    # The policy of now does not matter: a letter that fails again is not dropped.
    strict = declared(orders, sql=STRICT, on_error="drop")
    assert replay(strict, stage="transform", limit=1) == ReplayResult("orders", "success", 1, 0, 1, 0)
    assert sorted(one.attempt for one in orders.dead_letters()) == [1, 1, 2]
    assert {one.id for one in orders.dead_letters()} == ids
    assert {one.source for one in orders.dead_letters()} == {"source"}

    (orders.folder / "orders.toml").write_text(orders.toml(schema=SCHEMA, sql=LENIENT, on_error="dlq"))
    monkeypatch.chdir(orders.folder)
    assert main(["dlq", "replay", "orders"]) == 0
    assert "orders: replayed 3 letters, 2 succeeded, 1 failed again, 0 of them parked\n" in capsys.readouterr().out
    assert orders.in_database() == [(1, 1.5, "2026-01-02"), (2, None, "2026-01-02"), (4, None, "2026-01-02")]
    assert letters(orders) == [("decode", "pending", 2, b'{"id": 3, "amount": ')]

    (left,) = orders.dead_letters()
    assert main(["dlq", "park", left.id[:8]]) == 0
    capsys.readouterr()
    assert main(["dlq", "replay", "orders.toml", "--id", left.id[:8], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["parked"] == 1
    assert letters(orders) == [("decode", "parked", 3, b'{"id": 3, "amount": ')]
    assert orders.ids_in_database() == [1, 2, 4]


class Died(Exception):
    """Stands for the end of the process."""


def die(*_: object, **__: object) -> None:
    raise Died


def leased_only(spec: PipelineSpec, ids: list[str], patch: pytest.MonkeyPatch) -> None:
    with closing(DeadLetters(dead_letters_of(spec.name))) as store:
        store.lease(Which(ids=tuple(ids)), "r")


def applied_not_settled(spec: PipelineSpec, ids: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayStore, "divert", die)
    with pytest.raises(BatchFailed, match="in step divert"):
        replay(spec, ids=ids)


def settled_not_committed(spec: PipelineSpec, ids: list[str], patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BatchFailed, match="in step commit"):
        replay(spec, ids=ids, on_batch=die)


def committed_not_cleared(spec: PipelineSpec, ids: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayStore, "finish", die)
    with pytest.raises(Died):
        replay(spec, ids=ids)


def test_a_replay_that_dies_is_taken_up_by_the_next_and_nothing_is_lost_or_doubled(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where all was settled before the end, asking again is one more attempt.
    deaths = {
        leased_only: 1,
        applied_not_settled: 1,
        settled_not_committed: 2,
        committed_not_cleared: 2,
    }
    orders.arrive("a.jsonl", ["no JSON", *({"id": n, "amount": "x"} for n in range(len(deaths)))])
    orders.run(sql=STRICT, schema=SCHEMA, on_error="dlq")
    (hopeless, *others) = sorted(orders.dead_letters(), key=lambda one: (one.stage, one.payload))
    spec = declared(orders, sql=LENIENT).model_copy(update={"dlq_max_attempts": 100})
    attempts = 1
    for number, (death, more) in enumerate(deaths.items()):
        ids = [hopeless.id, others[number].id]
        with monkeypatch.context() as patch:
            death(spec, ids, patch)
        replay(spec, ids=ids)
        assert orders.ids_in_database() == list(range(number + 1)), death
        attempts += more
        left, *_ = sorted(orders.dead_letters(), key=lambda one: one.stage)
        assert (left.id, left.status, left.attempt) == (hopeless.id, "pending", attempts), death
    assert letters(orders) == [("decode", "pending", attempts, b"no JSON")]
