"""`flow state`, `flow rewind` and `flow runs`, as far as they need no Spark: what they find, do and refuse."""

import io
import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import run_pipeline
from ematix_flow.errors import FlowError
from ematix_flow.ops.cli import main
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec
from ematix_flow.state import history
from ematix_flow.state.batches import Batches
from ematix_flow.state.checkpoint import files_in
from ematix_flow.state.dead_letters import DeadLetter
from ematix_flow.state.history import recorded, runs_of
from ematix_flow.state.lock import PipelineBusy
from ematix_flow.state.memory import Memory
from ematix_flow.state.store import open_store
from ematix_flow.toml import load_toml
from tests.checkpoints import logged_files, write_checkpoint
from tests.services.postgres import Postgres

DECLARED = """
pipeline_name = "orders"
[source]
kind = "object_store_local"
path = "in"
format = "json_lines"
[[targets]]
kind = "duckdb"
path = "out.db"
mode = "merge"
keys = ["id"]
[targets.table]
name = "t"
[[targets]]
kind = "object_store_local"
path = "out"
format = "parquet"
[state_store]
"""


class Shop:
    """A pipeline in a folder of its own, and the `flow` commands about it."""

    def __init__(self, folder: Path, store: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        (folder / "orders.toml").write_text(DECLARED + store)
        self.state = folder / ".ematix-flow/state/orders"
        self.checkpoint = self.state / "checkpoint"

    @property
    def spec(self) -> PipelineSpec:
        (spec,) = load_toml("orders.toml")
        return spec

    def flow(self, *words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        told = self._capsys.readouterr()
        return told.err if code else told.out

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.flow("state", "show", "orders", "--format", "json"))
        return found

    def ran(self, batches: int, *, letters: int = 0) -> None:
        """As if Spark had run so many batches in all."""
        with closing(open_store(self.spec)) as store:
            write_checkpoint(store.checkpoint, batches, stateful=True)
            store.save(batches - 1)
            store.divert(letter(number) for number in range(letters))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def letter(number: int) -> DeadLetter:
    facts = {"stage": "decode", "error_code": "bad-json", "error": "no JSON", "source": "source", "payload": b"x"}
    at = {
        "position": f"a#{number}",
        "event_ts": None,
        "payload_format": "json_lines",
        "failed_at": history.datetime.now(),
    }
    return DeadLetter(pipeline="orders", **facts, **at)  # type: ignore[arg-type]


@pytest.fixture
def kept_in(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The lines of `[state_store]` for a kind."""
    match request.param:
        case "postgres":
            return f'kind = "postgres"\nurl = "{request.getfixturevalue("postgres_url")}"'
        case "delta":
            return f'kind = "delta"\npath = "{tmp_path / "lake"}"'
    return ""


@pytest.fixture
def shop(kept_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path, kept_in, capsys)


local = pytest.mark.parametrize("kept_in", ["local"], indirect=True)
vaults = pytest.mark.parametrize("kept_in", ["postgres", "delta"], indirect=True)
everywhere = pytest.mark.parametrize("kept_in", ["local", "postgres", "delta"], indirect=True)


@everywhere
def test_show_tells_all_and_changes_nothing(shop: Shop) -> None:
    assert "none: it never ran" in shop.flow("state", "show", "orders")
    assert not shop.state.exists(), "looking leaves nothing behind"
    assert not Path("lake").exists()
    shop.ran(3, letters=2)
    facts = shop.facts()
    assert (facts["planned"], facts["planned_at"], facts["committed"], facts["oldest"]) == (
        2, "2026-01-01T00:02:00+00:00", 2, 0,
    )  # fmt: skip
    assert facts["watermark"] == "2026-01-01T00:00:00+00:00"
    assert {kind: of["files"] for kind, of in facts["files"].items()} == {
        "offsets": 3, "sources": 3, "commits": 3, "operator state": 4, "lookups": 1, "notes": 5,
    }  # fmt: skip
    assert (facts["running"], facts["dead_letters"]) == (None, {"pending": 2})
    shown = shop.flow("state", "show", "orders.toml")
    assert "latest batch    2, planned at 2026-01-01 00:02:00 UTC, committed\n" in shown
    assert "run by          nobody\n" in shown
    with closing(open_store(shop.spec)):
        running = shop.facts()["running"]
        assert running["alive"]
        assert f"process {os.getpid()}" in running["who"]
        assert "is already running in process" in shop.flow("rewind", "orders", "--to-batch", "0", "--yes", code=1)


@vaults
def test_restore_makes_the_disk_an_image_of_the_store(shop: Shop) -> None:
    assert "nothing to restore" in shop.flow("state", "restore", "orders", code=2)
    shop.ran(3)
    assert shop.facts()["disk"].startswith("has the same")
    shutil.rmtree(shop.state)
    assert "the next start restores what it lacks" in shop.facts()["disk"]
    assert "restored from" in shop.flow("state", "restore", "orders")
    assert len(Batches.of_folder(shop.checkpoint).planned) == 3
    assert "nothing was changed" in shop.flow("state", "restore", "orders", "--yes")

    # A history of its own: the pipeline refuses to start, a person decides.
    shutil.rmtree(shop.state)
    write_checkpoint(shop.checkpoint, 7)
    with pytest.raises(FlowError, match="does not come from"):
        open_store(shop.spec)
    assert "`flow state restore` replaces it" in shop.facts()["disk"]
    assert "What to do: add --yes" in shop.flow("state", "restore", "orders", code=2)
    assert "removed" in shop.flow("state", "restore", "orders", "--yes")
    assert len(Batches.of_folder(shop.checkpoint).planned) == 3
    open_store(shop.spec).close()


@everywhere
def test_rewind_says_what_is_repeated_and_begins_a_generation(shop: Shop) -> None:
    assert "has no state" in shop.flow("rewind", "orders", "--from-start", "--yes", code=2)
    shop.ran(13, letters=1)
    before = shop.facts()["generation"]
    if shop.spec.state_store.kind != "local":
        shutil.rmtree(shop.state)
    told = shop.flow("rewind", "orders", "--to", "2026-01-01T00:10:30", "--yes")
    assert "repeated                   batches 11 to 12, planned from 2026-01-01 00:11:00 UTC to " in told
    assert "target t                   merge: the same keys are written again, none twice" in told
    assert "target object_store_local  append: their rows are added a second time\n" in told
    assert "the next run goes on with batch 11\n" in told
    assert logged_files(shop.checkpoint) == list(range(11))
    facts = shop.facts()
    assert (facts["planned"], facts["committed"]) == (10, 10)
    assert facts["dead_letters"] == {"pending": 1}
    assert facts["generation"] != before
    assert "there is nothing to repeat" in shop.flow("rewind", "orders", "--to-batch", "10", "--yes")
    assert "given back" in shop.flow("state", "compact", "orders")
    assert shop.facts()["files"] == facts["files"]

    assert "batches 0 to 10" in shop.flow("rewind", "orders", "--from-start", "--yes")
    assert files_in(shop.checkpoint).keys() == {"generation"}
    assert shop.facts()["planned"] is None
    with closing(open_store(shop.spec)) as store:
        assert store.generation not in {before, facts["generation"]}


@local
def test_rewind_needs_to_know_where_to_and_to_be_sure(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.ran(3)
    before = files_in(shop.checkpoint)
    assert "needs to know where to" in shop.flow("rewind", "orders", code=2)
    assert "needs to know where to" in shop.flow("rewind", "orders", "--to", "1d", "--from-start", code=2)
    assert "cannot go back to batch 7" in shop.flow("rewind", "orders", "--to-batch", "7", "--yes", code=2)
    assert "is 0, planned at 2026-01-01 00:00:00" in shop.flow("rewind", "orders", "--to", "2025-01-01", code=2)
    assert "neither a duration nor a time" in shop.flow("rewind", "orders", "--to", "soon", code=2)
    assert "What to do: add --yes" in shop.flow("rewind", "orders", "--to-batch", "1", code=2)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert "Rewind orders? [y/N]" in shop.flow("rewind", "orders", "--to-batch", "1", code=130)
    assert files_in(shop.checkpoint) == before
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert "goes on with batch 2\n" in shop.flow("rewind", "orders", "--to-batch", "1")
    assert "nothing to restore it from" in shop.flow("state", "restore", "orders", code=2)
    (shop.state / "staging").mkdir()
    (shop.state / "staging/rows").write_bytes(b"x" * 1500)
    assert "1.5 kB given back" in shop.flow("state", "compact", "orders")
    (Path("orders.toml")).write_text(DECLARED + 'kind = "in_memory"')
    assert "keeps its state in memory" in shop.flow("state", "show", "orders", code=2)


@pytest.mark.parametrize("kept_in", ["postgres"], indirect=True)
def test_a_damaged_store_can_always_begin_anew(shop: Shop, postgres: Postgres) -> None:
    shop.ran(3)
    shutil.rmtree(shop.state)
    url = shop.spec.state_store.url or ""
    postgres.query(url, "UPDATE ematix_flow_files SET content = '' WHERE path LIKE 'offsets/%'")
    assert "is damaged or gone" in shop.flow("rewind", "orders", "--to-batch", "1", "--yes", code=1)
    assert "batches 0 to 2\n" in shop.flow("rewind", "orders", "--from-start", "--yes")
    open_store(shop.spec).close()
    freed = shop.flow("state", "compact", "orders")
    assert "given back" in freed
    assert " 0 bytes" not in freed


@everywhere
def test_every_run_leaves_a_record(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.flow("runs", "list") == "no runs\n"
    spec = shop.spec

    def works() -> RunResult:
        (running,) = json.loads(shop.flow("runs", "list", "orders", "--format", "json"))
        assert (running["status"], running["pid"], running["ended_at"]) == ("running", os.getpid(), None)
        return RunResult("orders", "success", batches=2, rows_consumed=30, rows_written={"duckdb": 20, "files": 9})

    def fails() -> RunResult:
        raise FlowError("no way to postgresql://ada:s3cret@host/db")

    recorded(spec, works)
    with pytest.raises(FlowError):
        recorded(spec, fails)
    failed, done = json.loads(shop.flow("runs", "list", "--format", "json"))
    assert (done["status"], done["batches"], done["rows_written"]) == ("success", 2, {"duckdb": 20, "files": 9})
    assert (failed["status"], failed["error_code"]) == ("failed", "failed")
    assert "s3cret" not in str(failed)
    shown = shop.flow("runs", "show", done["run_id"][:-2])
    assert "rows consumed  30\n" in shown
    assert "duckdb 20, files 9" in shown
    assert json.loads(shop.flow("runs", "show", failed["run_id"], "orders", "--format", "json")) == failed
    assert 'there is no run "zzz"' in shop.flow("runs", "show", "zzz", code=2)
    assert "write more of the id" in shop.flow("runs", "show", "2", code=2)
    header, first, second, *_ = shop.flow("runs", "list").splitlines()
    assert header.split()[:3] == ["RUN", "PIPELINE", "STATUS"]
    assert (first.split()[2], second.split()[-3:]) == ("failed", ["2", "30", "29"])


@local
def test_only_the_newest_records_stay_and_the_dead_are_told(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    for number in range(5):
        recorded(shop.spec, lambda number=number: RunResult("orders", "stopped", batches=number))  # type: ignore[misc]
    with closing(Memory("orders", shop.spec.state_store)) as memory:
        assert sorted(run.counters["batches"] for run in runs_of(memory)) == [2, 3, 4]

        # The process of this one was killed, and nobody was left to write down its end.
        newest = max((shop.state / "runs").iterdir())
        facts = json.loads(newest.read_text())
        newest.write_text(json.dumps(facts | {"status": "running", "ended_at": None}))
        assert runs_of(memory)[0].status == "running", "for this process is alive"
        newest.write_text(json.dumps(facts | {"status": "running", "holder": facts["holder"] | {"born": "1"}}))
        assert [run.status for run in runs_of(memory)] == ["died", "stopped", "stopped"]


@local
def test_a_run_that_is_not_let_in_leaves_a_record_too(shop: Shop) -> None:
    def runs_meanwhile() -> RunResult:
        with closing(open_store(shop.spec)):
            assert "already running" in shop.flow("run", "orders", "--bounded", code=1)
            with pytest.raises(PipelineBusy):
                run_pipeline("orders.toml", bounded=True)
        *refused, running = json.loads(shop.flow("runs", "list", "--format", "json"))
        assert [run["error_code"] for run in refused] == ["pipeline-busy", "pipeline-busy"]
        assert running["status"] == "running", "those that came later were not let in"
        assert shop.flow("status").splitlines()[1].split()[:2] == ["orders", "running"]
        return RunResult("orders", "stopped")

    recorded(shop.spec, runs_meanwhile)


@local
def test_a_record_that_cannot_be_written_is_a_warning(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.state.mkdir(parents=True)
    (shop.state / "runs").write_text("in the way")
    done = RunResult("orders", "success")
    assert recorded(shop.spec, lambda: done) is done
    assert [record.getMessage() for record in caplog.records] == ["run not recorded"]
