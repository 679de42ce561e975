"""What every vault does, whatever keeps it: files by generation, a lease for one process, and documents on a shelf."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from ematix_flow.state import delta, delta_contents, delta_files, delta_table, lease, vault
from ematix_flow.state.delta import DeltaVault
from ematix_flow.state.holder import Holder
from ematix_flow.state.lease import Lease
from ematix_flow.state.lock import PipelineBusy
from ematix_flow.state.postgres import PostgresVault
from ematix_flow.state.vault import LeaseLost, StateDamaged, StateStoreRefused, Vault
from tests.services.postgres import Postgres

ELSEWHERE = Holder("far-away", "another machine", 7, "1")

Open = Callable[..., Vault]
Disk = Callable[[Mapping[str, bytes]], dict[str, Path]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture(params=["postgres", "delta"])
def open_vault(request: pytest.FixtureRequest, store: Path) -> Iterator[Open]:
    """Each call is a process of its own; all of them share one store."""
    opened: list[Vault] = []
    url = request.getfixturevalue("database") if request.param == "postgres" else ""
    schema = f"Schema {uuid4().hex}"

    def opening(pipeline: str = "orders") -> Vault:
        one = PostgresVault(pipeline, url, schema) if url else DeltaVault(pipeline, str(store))
        opened.append(one)
        return one

    yield opening
    for one in opened:
        one.close()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Contents as files, the way a checkpoint has them."""

    def put(contents: Mapping[str, bytes]) -> dict[str, Path]:
        files = {path: tmp_path / path.replace("/", "_") for path in contents}
        for path, file in files.items():
            file.write_bytes(contents[path])
        return files

    return put


def everything(one: Vault) -> dict[str, bytes]:
    held = one.latest()
    return dict(one.read(held.generation, held.files)) if held else {}


def test_looking_at_an_empty_store(open_vault: Open) -> None:
    one = open_vault()
    assert (one.latest(), one.lease(), one.shelf("runs"), one.compact()) == (None, None, {}, 0)
    assert not one.mine(1)


def test_files_come_back_as_they_were_saved(open_vault: Open, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault, "PART_BYTES", 10)
    one = open_vault("Bestellungen/ö 1")
    token = one.take(ELSEWHERE, None)
    large = bytes(range(95))
    contents = {"empty": b"", "offsets/0": b"small", "state/0/1.delta": b"0123456789", "state/0/2.zip": large}
    first = one.save("g", 3, disk(contents) | {"offsets/forgotten-by-spark": Path("nowhere")}, ["never there"], token)
    # The note that a batch is done belongs to that batch.
    last = one.save("g", None, disk({"commits/3": b"done"}), [], token)

    other = open_vault("Bestellungen/ö 1")
    held = other.latest()
    assert held is not None
    assert (held.generation, held.save, held.batch) == ("g", last, 3)
    assert last > first
    assert abs(held.saved_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert everything(other) == {**contents, "commits/3": b"done"}
    assert dict(other.read("g", ["empty", "state/0/2.zip"])) == {"empty": b"", "state/0/2.zip": large}
    assert {path: kept.size for path, kept in held.files.items()} == {
        path: len(content) for path, content in everything(one).items()
    }
    assert held.files["state/0/2.zip"].digest == vault.digest_of(large)


def test_files_are_replaced_and_forgotten(open_vault: Open, disk: Disk) -> None:
    one = open_vault()
    token = one.take(ELSEWHERE, None)
    one.save("g", 0, disk({"a": b"1", "b": b"1", "c": b"1"}), [], token)
    one.save("g", 1, disk({"b": b"longer than before"}), ["a", "c"], token)
    one.save("g", 2, disk({"c": b"back"}), [], token)
    assert everything(one) == {"b": b"longer than before", "c": b"back"}


def test_the_latest_save_decides_the_generation(open_vault: Open, disk: Disk) -> None:
    one = open_vault()
    token = one.take(ELSEWHERE, None)
    one.save("old", 7, disk({"a": b"old" * 1000, "b": b"old"}), [], token)
    one.save("new", 0, disk({"a": b"new"}), [], token)
    one.put_on_shelf("runs", {"1": b"kept"})
    assert everything(one) == {"a": b"new"}
    assert dict(one.read("old", ["a", "b"])) == {"a": b"old" * 1000, "b": b"old"}

    assert open_vault().compact() > 0
    assert everything(one) == {"a": b"new"}
    assert not any(content for _, content in one.read("old", ["a"]))
    assert one.shelf("runs") == {"1": b"kept"}
    assert one.mine(token)
    assert one.save("new", 1, disk({"b": b"goes on"}), [], token)


def test_a_lease_goes_only_to_who_knows_how_it_stands(open_vault: Open, disk: Disk) -> None:
    one, other = open_vault(), open_vault()
    token = one.take(ELSEWHERE, None)
    assert token is not None
    assert one.take(ELSEWHERE, None) is None
    seen = other.lease()
    assert seen is not None
    assert (seen.holder, seen.token) == (ELSEWHERE, token)
    assert seen.silent < 5
    assert one.beat(token)
    alive = other.lease()
    assert alive is not None
    assert alive.beat != seen.beat
    assert other.take(Holder.here(), seen) is None

    taken = other.take(Holder.here(), alive)
    assert taken is not None
    assert taken > token
    assert one.take(ELSEWHERE, alive) is None
    assert not one.mine(token)
    assert not one.beat(token)
    with pytest.raises(LeaseLost, match=f"process {Holder.here().pid} on"):
        one.save("g", 0, disk({"a": b"1"}), [], token)
    assert one.latest() is None

    one.leave(token)
    assert other.mine(taken)
    assert other.save("g", 0, disk({"a": b"2"}), [], taken)
    other.leave(taken)
    assert one.lease() is None
    assert not other.beat(taken)
    with pytest.raises(LeaseLost):
        other.save("g", 0, disk({"a": b"3"}), [], taken)
    assert everything(one) == {"a": b"2"}
    again = one.take(ELSEWHERE, None)
    assert again is not None
    assert again > taken


def test_the_second_process_is_told_who_runs_the_pipeline(
    open_vault: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.02)
    held = Lease("orders", open_vault())
    with pytest.raises(PipelineBusy, match=f"process {Holder.here().pid} on"):
        Lease("orders", open_vault())
    held.check()
    held.release()
    Lease("orders", open_vault()).release()
    assert caplog.messages == []


def test_a_dead_process_of_this_machine_is_replaced_at_once(open_vault: Open) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = open_vault().take(replace(Holder.here(), pid=dead.pid), None)
    began = time.monotonic()
    held = Lease("orders", open_vault())
    assert time.monotonic() - began < lease.EXPIRES_SECONDS / 3
    assert held.token != left
    held.release()


def test_a_silent_process_is_replaced_after_a_while(open_vault: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "EXPIRES_SECONDS", 0.3)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.02)
    silent = open_vault()
    token = silent.take(ELSEWHERE, None)
    assert token is not None
    held = Lease("orders", open_vault())
    assert not silent.mine(token)
    held.check()
    held.release()


def test_documents_on_a_shelf(open_vault: Open) -> None:
    one, other = open_vault(), open_vault()
    one.put_on_shelf("runs", {"1": b"first", "2": b""})
    other.put_on_shelf("runs", {"2": b"second", "3": b"third"}, gone=["1", "never there"])
    other.put_on_shelf("notes", {"1": b"on another shelf"})
    assert one.shelf("runs") == {"2": b"second", "3": b"third"}
    assert one.shelf("notes") == {"1": b"on another shelf"}
    assert open_vault("other").shelf("runs") == {}
    assert one.latest() is None


def test_pipelines_share_a_store_without_meeting(open_vault: Open, disk: Disk) -> None:
    pipelines, saves = ("first", "second"), range(12)

    def run(pipeline: str) -> None:
        one = open_vault(pipeline)
        token = one.take(ELSEWHERE, None)
        while token is None:
            token = one.take(ELSEWHERE, None)
        for number in saves:
            one.save("g", number, disk({f"{pipeline}/{number}": pipeline.encode()}), [], token)
            assert one.beat(token)
            one.put_on_shelf("runs", {str(number): pipeline.encode()})

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(run, pipelines)) == [None, None]
    for pipeline in pipelines:
        one = open_vault(pipeline)
        assert everything(one) == {f"{pipeline}/{number}": pipeline.encode() for number in saves}
        assert one.shelf("runs") == {str(number): pipeline.encode() for number in saves}


def test_delta_looks_without_creating(store: Path) -> None:
    one = DeltaVault("orders", str(store))
    assert (one.latest(), one.lease(), one.shelf("runs"), one.compact(), one.mine(1)) == (None, None, {}, 0, False)
    one.leave(1)
    assert not store.exists()


def test_delta_refuses_who_lost_the_lease_in_the_middle_of_a_save(
    store: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (DeltaVault("orders", str(store)) for _ in range(2))
    token = one.take(ELSEWHERE, None)
    assert token is not None
    commit = delta_table.PipelineTable.commit

    def late(*args: object, **named: object) -> None:
        """As if this process was paused after it made sure that it has the lease."""
        monkeypatch.setattr(delta_table.PipelineTable, "commit", commit)
        assert other.take(Holder.here(), other.lease())
        commit(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_table.PipelineTable, "commit", late)
    with pytest.raises(LeaseLost):
        one.save("g", 0, disk({"a": b"1"}), [], token)
    assert other.latest() is None


def test_delta_stays_small_and_right(store: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long history, with files that are large enough to stay, against a dictionary."""
    monkeypatch.setattr(delta, "SMALL_FILES", 6)
    monkeypatch.setattr(delta_contents, "SMALL_BYTES", 6_000)
    monkeypatch.setattr(delta_files, "_ABANDONED_SECONDS", -1)
    chance = random.Random(5)
    one, expected = DeltaVault("orders", str(store)), {}
    token = one.take(ELSEWHERE, None)
    assert token is not None
    for number in range(45):
        put = {f"f{chance.randrange(20)}": chance.randbytes(chance.choice([0, 10, 4_000])) for _ in range(3)}
        gone = [path for path in expected if path not in put and chance.random() < 0.1]
        one.save("g", number, disk(put), gone, token)
        expected = {path: content for path, content in (expected | put).items() if path not in gone}
        if number % 9 == 0:
            assert everything(DeltaVault("orders", str(store))) == expected
    DeltaVault("orders", str(store)).compact()
    held = one.latest()
    assert held is not None
    assert held.batch == 44
    assert everything(one) == expected
    # What the last compaction replaced stays for those who read it now.
    assert len(list(store.rglob("*-*.parquet"))) < 30
    assert one.mine(token)


def test_delta_says_what_is_wrong(store: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalake import DeltaTable

    one = DeltaVault("orders", str(store))
    token = one.take(ELSEWHERE, None)
    assert token is not None
    one.save("g", 0, disk({"a": b"1" * 100}), [], token)
    (saved,) = store.glob(f"files/*/*{token + 1}-*.parquet")
    saved.write_bytes(saved.read_bytes()[:50])
    with pytest.raises(StateDamaged, match="cannot be read"):
        one.latest()

    DeltaTable(store / "files").alter.set_table_properties({"ematix_flow.version": "2"}, raise_if_not_exists=False)
    with pytest.raises(StateStoreRefused, match="version 2, this release needs 1"):
        DeltaVault("orders", str(store)).lease()

    (store / "file").touch()
    with pytest.raises(StateStoreRefused, match=r"Not a directory|NotADirectory"):
        DeltaVault("orders", str(store / "file")).latest()
    with pytest.raises(StateStoreRefused, match=r"Not a directory|NotADirectory"):
        DeltaVault("orders", str(store / "file")).put_on_shelf("runs", {"1": b""})

    monkeypatch.setitem(sys.modules, "deltalake.exceptions", None)
    with pytest.raises(StateStoreRefused) as refused:
        DeltaVault("orders", str(store)).latest()
    assert "pip install 'ematix-flow-spark[delta]'" in str(refused.value)
