"""A pipeline whose memory is elsewhere: a lost disk, a paused process, a store that refuses or goes away."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.specs import StateStore
from ematix_flow.state.dead_letters import DeadLetter
from ematix_flow.state.definition import DefinitionChanged
from ematix_flow.state.memory import Memory
from ematix_flow.state.mirror import StateDisagrees
from ematix_flow.state.store import Store
from ematix_flow.state.vault import StateStoreRefused, StateStoreUnavailable
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.steps import PAUSE_AT
from ematix_flow.toml import load_toml
from tests.orders import PER_MINUTE, Orders
from tests.services.postgres import Postgres, own_postgres

HOME = "EMATIX_FLOW_HOME"
ONE_FILE = "max_files_per_batch = 1"


def kept_in(url: str) -> str:
    return f'[state_store]\nkind = "postgres"\nurl = "{url}"\n'


@pytest.mark.usefixtures("spark")
def test_a_disk_that_is_lost_between_two_runs_is_not_missed(orders: Orders, postgres_url: str) -> None:
    declaration = {"schema": None, "source": ONE_FILE, "on_error": "dlq", "more": kept_in(postgres_url)}
    orders.arrive("0.jsonl", [{"id": 1, "amount": 1.5}, "broken"])
    first = orders.run(**declaration)
    shutil.rmtree(os.environ[HOME])
    orders.arrive("1.jsonl", [{"id": 2, "amount": 2.5, "unknown": True}])

    second = orders.run(**declaration)
    shutil.rmtree(os.environ[HOME])
    third = orders.run(**declaration)

    assert orders.in_database() == [(1.5, 1), (2.5, 2)]
    assert (first.batches, second.batches, third.batches) == (1, 1, 0)
    memory = Memory("orders", StateStore(kind="postgres", url=postgres_url))
    with closing(memory), closing(memory.dead_letters()) as letters:
        assert [letter.payload for letter in letters.all()] == [b"broken"]


@pytest.mark.usefixtures("spark")
def test_a_process_that_was_paused_stops_before_it_applies(orders: Orders, postgres_url: str) -> None:
    """It stands still at the beginning of apply, with its batch saved; meanwhile another one takes over."""
    orders.numbered(range(10), range(10, 20), range(20, 30))
    declaration = orders.toml(source=ONE_FILE, targets=("json_lines",), more=kept_in(postgres_url))
    command = [sys.executable, "-m", "tests.crash.victim"]
    here = {"PYTHONPATH": str(Path(__file__).parents[2]), HOME: str(orders.folder / "elsewhere"), PAUSE_AT: "apply@1"}
    with (orders.folder / "log").open("wb") as log:
        paused = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, cwd=orders.folder, env=os.environ | here)
    try:
        assert paused.stdin is not None
        with paused.stdin as text:
            text.write(declaration.encode())
        _wait_until_stopped(paused.pid)

        result = orders.run_text(declaration)
        written = {file: file.stat().st_mtime_ns for file in orders.files()}
        paused.send_signal(signal.SIGCONT)

        assert paused.wait() == 1
        assert "was taken over" in (orders.folder / "log").read_text()
        assert {file: file.stat().st_mtime_ns for file in orders.files()} == written
        assert orders.ids_in_files() == list(range(30))
        assert result.batches == 2
    finally:
        paused.kill()


@pytest.mark.usefixtures("spark")
def test_a_store_that_goes_away_in_the_middle_of_a_batch_loses_nothing(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.state.postgres_session._PATIENCE_SECONDS", 1.0)
    orders.numbered(range(10), range(10, 20))
    with own_postgres(durable=True) as server:
        (spec,) = load_toml(None, orders.toml(source=ONE_FILE, more=kept_in(server.url)))

        def crash(step: str, batch: int) -> None:
            if (step, batch) == ("save", 1):
                server.kill()

        with pytest.raises(StateStoreUnavailable) as caught:
            run_spec(spec, bounded=True, on_step=crash)
        seen = orders.ids_in_database()
        server.start()
        run_spec(spec, bounded=True)

    assert caught.value.transient
    assert seen == list(range(10))
    assert orders.ids_in_database() == list(range(20))


@pytest.mark.usefixtures("spark")
def test_a_changed_definition_is_refused_with_the_difference(orders: Orders, postgres_url: str) -> None:
    orders.arrive("0.jsonl", [{"shop": "a", "amount": 1.5, "at": "2026-01-01T00:00:10Z"}])
    declaration = {"schema": "shop string, amount double, at timestamp", "more": kept_in(postgres_url)}

    def run(sql: str | None = None, window: str = PER_MINUTE) -> None:
        orders.run_text(orders.toml(sql=sql, **declaration) + window)

    run()
    # What comes before the operator may change, what its state means may not.
    run(sql="SELECT upper(shop) AS shop, amount, at FROM source")
    with pytest.raises(DefinitionChanged) as caught:
        run(window=PER_MINUTE.replace('"at"', '"_event_ts"'))
    assert caught.value.differences == ('event time: was "at", is "_event_ts"',)
    assert "flow rewind orders --from-start" in str(caught.value)


def test_disk_and_store_that_disagree_are_refused(tmp_path: Path, postgres_url: str) -> None:
    declared = StateStore(kind="postgres", url=postgres_url)

    def opened(disk: str) -> Store:
        return Store("orders", tmp_path / disk, Memory("orders", declared).vault, 60)

    def planned(store: Store, batch: int, text: str) -> None:
        (store.checkpoint / "offsets").mkdir(exist_ok=True)
        (store.checkpoint / "offsets" / str(batch)).write_text(text)
        store.save(batch)

    store = opened("a")
    planned(store, 0, "first")
    store.close()
    (tmp_path / "a/checkpoint/offsets/0").write_text("other")
    with pytest.raises(StateDisagrees, match="offsets/0 on this disk is not what was saved"):
        opened("a")

    # A disk that is merely behind, because the pipeline went on elsewhere, is brought up to date.
    (tmp_path / "a/checkpoint/offsets/0").write_text("first")
    store = opened("b")
    planned(store, 1, "second")
    store.close()
    store = opened("a")
    assert (store.checkpoint / "offsets/1").read_text() == "second"
    store.close()

    (tmp_path / "c/checkpoint/offsets").mkdir(parents=True)
    (tmp_path / "c/checkpoint/offsets/0").write_text("mine")
    with pytest.raises(StateDisagrees, match="does not come from Postgres"):
        opened("c")

    Postgres.query(postgres_url, "DELETE FROM ematix_flow_pipelines")
    with pytest.raises(StateDisagrees, match="knows nothing of the pipeline"):
        opened("a")


def test_a_local_checkpoint_moves_into_a_new_store(tmp_path: Path, postgres_url: str) -> None:
    bad = DeadLetter(
        "orders", "decode", "bad", "seven", "s", "7", None, "json", b"7", datetime.now(UTC), status="parked"
    )
    local = Store("orders", tmp_path / "a")
    local.remember("note", "of the past")
    local.divert([bad])
    local.close()

    Store("orders", tmp_path / "a", Memory("orders", StateStore(kind="postgres", url=postgres_url)).vault, 60).close()
    elsewhere = Memory("orders", StateStore(kind="postgres", url=postgres_url))
    with closing(elsewhere), closing(elsewhere.dead_letters()) as letters:
        assert elsewhere.recall("note") == "of the past"
        assert letters.all() == [bad]


def test_tls_and_a_wrong_password(tmp_path: Path) -> None:
    with own_postgres(tls=True) as server:
        wrong = server.with_password("wr0ng")
        with pytest.raises(StateStoreRefused) as caught:
            Store("orders", tmp_path / "a", Memory("orders", StateStore(kind="postgres", url=wrong)).vault, 60)
        assert "password authentication failed" in str(caught.value)
        assert "wr0ng" not in str(caught.value)
        plain = server.url.partition("?")[0] + "?sslmode=disable"
        with pytest.raises(StateStoreRefused, match="does not accept"):
            Memory("orders", StateStore(kind="postgres", url=plain)).recall("note")
        assert _tables(server) == []

        Store("orders", tmp_path / "b", Memory("orders", StateStore(kind="postgres", url=server.url)).vault, 60).close()
        assert "ematix_flow_files" in _tables(server)


@pytest.mark.parametrize("url", ["app:Zwr%0ng6@127.0.0.1/db", "app:Zwr@0ng3@127.0.0.1/db", "app:Zwr0ng@h:port/db"])
def test_a_url_that_is_none_is_refused_without_a_part_of_the_password(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a Postgres database") as caught:
        Memory("orders", StateStore(kind="postgres", url=f"postgresql://{url}")).recall("note")
    assert "0ng" not in str(caught.value)
    with pytest.raises(FlowError, match="is not the URL of a Postgres database"):
        StateStore(kind="postgres", url=f"mysql://{url}")


def test_a_user_who_may_not_create_tables_leaves_nothing_behind(tmp_path: Path, postgres_url: str) -> None:
    name = f"guest_{os.getpid()}"
    Postgres.query(postgres_url, f"CREATE ROLE {name} LOGIN")
    guest = postgres_url.replace("//postgres@", f"//{name}@")
    with pytest.raises(FlowError) as caught:
        Store("orders", tmp_path, Memory("orders", StateStore(kind="postgres", url=guest)).vault)
    assert caught.value.code == "state-store-refused"
    assert "permission denied" in str(caught.value)
    assert not Postgres.query(postgres_url, "SELECT 1 FROM pg_tables WHERE tablename LIKE 'ematix_flow%'")


def _tables(server: Postgres) -> list[str]:
    found = server.query(server.url, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'ematix_flow%'")
    return [name for (name,) in found]


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.1)
