"""`flow plan`, `flow status`, `flow logs` and `flow secrets test`: what lies ahead of a pipeline and what behind it."""

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.errors import FlowError
from ematix_flow.ops.cli import main
from ematix_flow.ops.logs import logging_for
from ematix_flow.ops.settings import Settings
from ematix_flow.result import RunResult
from ematix_flow.state.definition import Definition
from ematix_flow.state.history import recorded
from ematix_flow.state.store import open_store
from ematix_flow.toml import load_toml
from tests.checkpoints import write_checkpoint

DECLARED = """
pipeline_name = "orders"
[source]
kind = "object_store_local"
path = "${INBOX}"
format = "json_lines"
[transform]
sql = "SELECT id FROM source"
[[targets]]
kind = "duckdb"
path = "out.db"
table = "orders"
[[targets]]
kind = "object_store_local"
path = "out"
format = "parquet"
"""

Flow = Callable[..., str]


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Flow:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INBOX", "in")
    (tmp_path / "in").mkdir()
    (tmp_path / "orders.toml").write_text(DECLARED)

    def run(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        told = capsys.readouterr()
        return told.out + told.err

    return run


def plan(flow: Flow, code: int = 0) -> dict[str, Any]:
    (one,) = json.loads(flow("plan", "orders", "--format", "json", code=code))["pipelines"]
    found: dict[str, Any] = one["plan"]
    return found


def ran(batches: int, committed: int) -> None:
    """As if the pipeline, as it is declared, had run; each batch has read one file."""
    (spec,) = load_toml("orders.toml")
    with closing(open_store(spec)) as store:
        store.agree(Definition.of(spec))
        write_checkpoint(store.checkpoint, batches, committed=committed)
        log = store.checkpoint / "sources/0/0"
        log.write_text(log.read_text().replace("/in/", f"{Path.cwd()}/in/"))


def test_a_plan_tells_where_the_next_run_begins_what_changed_and_what_it_costs(flow: Flow, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"in/{number}.jsonl").write_text('{"id": 1}\n')
    first = plan(flow)
    assert first["begins"].startswith("begins at the start")
    assert first["cost"] == [
        "reads 3 files of source, 30 bytes",
        "writes each batch 2 times, to one target after the other",
    ]
    assert "exactly once" in flow("plan", "orders.toml")

    ran(1, committed=0)
    (tmp_path / "orders.toml").write_text(DECLARED.replace("SELECT id", "SELECT id AS number"))
    then = plan(flow)
    assert then["begins"] == "repeats batch 0, which was planned and not committed, then goes on"
    assert then["cost"][0] == "reads 2 files of source, 20 bytes"
    (changed,) = then["changes"]
    assert changed.startswith("transform sql: was")
    assert then["refused"] == []

    ran(1, committed=1)
    (tmp_path / "orders.toml").write_text(DECLARED.replace("[source]", '[source]\nname = "shop"'))
    last = plan(flow, code=1)
    assert last["begins"] == "goes on after batch 0"
    assert 'sources: was "source", is "shop"' in last["refused"]


def test_a_plan_of_what_is_declared_wrongly_is_its_problems(flow: Flow, tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(DECLARED.replace("SELECT id FROM source", "DROP TABLE orders"))
    assert "must be one SELECT, found DROP" in flow("plan", "orders", code=2)
    assert "must be one SELECT, found DROP" in flow("validate", "orders", code=2)


def test_status_and_logs_tell_of_the_latest_run(flow: Flow) -> None:
    assert flow("status").splitlines()[1].split() == ["orders", "never", "ran", "0"]
    (spec,) = load_toml("orders.toml")

    def works() -> RunResult:
        with logging_for(Settings()):
            for name in ("orders", "orders too"):
                logging.getLogger("ematix_flow.streams").info("batch", extra={"pipeline": name, "batch": 7})
        return RunResult("orders", "success")

    def fails() -> RunResult:
        raise FlowError("no way")

    recorded(spec, works)
    (done,) = json.loads(flow("status", "orders", "--format", "json"))["pipelines"]
    assert (done["status"], done["error_code"]) == ("success", "")
    (line,) = flow("logs", done["run_id"]).splitlines()
    assert line.endswith("INFO batch pipeline=orders batch=7")

    with pytest.raises(FlowError):
        recorded(spec, fails)
    (failed,) = json.loads(flow("status", "--format", "json"))["pipelines"]
    assert (failed["status"], failed["error_code"]) == ("failed", "failed")
    assert f"nothing of run {failed['run_id']} is in" in flow("logs", failed["run_id"], code=2)


def test_every_reference_to_a_secret_is_tried_and_none_is_shown(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".ematix-flow.toml").write_text('[connections.crm]\nkind = "postgres"\nurl = "postgresql://me:${CRM}@h/d"\n')
    monkeypatch.setenv("CRM", "s3cret")
    told = flow("secrets", "test")
    assert "s3cret" not in told
    assert [line.split()[0] for line in told.splitlines()[1:]] == ["${CRM}", "${INBOX}"]

    monkeypatch.delenv("CRM")
    told = flow("secrets", "test", code=1)
    assert "${CRM} cannot be resolved" in told
    assert told.splitlines()[1].split() == ["${CRM}", "connection", "crm,", "url", "missing"]
