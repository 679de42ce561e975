"""Replays of a pipeline whose state store is elsewhere: from any machine, also after the one that began is gone."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.errors import UsageError
from ematix_flow.specs import StateStore
from ematix_flow.state.memory import Memory
from ematix_flow.state.store import ReplayStore
from ematix_flow.streams.failures import BatchFailed
from ematix_flow.streams.replay import ReplayResult, replay
from ematix_flow.toml import load_toml
from tests.integration.test_replay import die
from tests.orders import Orders

STRICT = "SELECT id, CAST(amount AS double) AS amount FROM source"

pytestmark = pytest.mark.usefixtures("spark")


def letters(store: StateStore) -> list[tuple[str, int, bytes | None]]:
    with closing(Memory("orders", store)) as memory, closing(memory.dead_letters()) as found:
        return [(one.status, one.attempt, one.payload) for one in found.find()]


@pytest.mark.parametrize("kind", ["postgres", "delta"])
def test_a_replay_goes_on_where_a_lost_machine_left_it(
    kind: str, orders: Orders, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(os.environ["EMATIX_FLOW_HOME"])
    place = f'url = "{request.getfixturevalue("postgres_url")}"' if kind == "postgres" else f'path = "{tmp_path}/lake"'
    text = orders.toml(
        schema="id long, amount string", sql=STRICT, on_error="dlq", more=f'[state_store]\nkind = "{kind}"\n{place}'
    )
    orders.arrive("a.jsonl", [{"id": 1, "amount": "one"}, {"id": 2, "amount": "two"}, "no JSON"])
    orders.run_text(text)
    (spec,) = load_toml(text=text.replace("CAST(", "try_cast("))

    with monkeypatch.context() as patch:
        patch.setattr(ReplayStore, "divert", die)
        with pytest.raises(BatchFailed, match="in step divert"):
            replay(spec, limit=1)
    shutil.rmtree(home)
    # Taken up, all of its letters settled, and yet its batch is not done: other letters must not be taken for it.
    with pytest.raises(BatchFailed, match="in step commit"):
        replay(spec, on_batch=die)
    shutil.rmtree(home)
    with monkeypatch.context() as patch:
        patch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "elsewhere"))
        with pytest.raises(UsageError, match="is not finished"):
            replay(spec)
    assert replay(spec) == ReplayResult("orders", replayed=2, succeeded=1, failed_again=1)
    assert orders.ids_in_database() == [1, 2]
    assert letters(spec.state_store) == [("pending", 2, b"no JSON")]
    # Nothing is begun now, so that any place will do.
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "elsewhere"))
    assert replay(spec) == ReplayResult("orders", replayed=1, failed_again=1, parked=1)
