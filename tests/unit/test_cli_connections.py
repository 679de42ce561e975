"""`flow connections`: list, check and set."""

import json
import sqlite3
from pathlib import Path

import pytest

from ematix_flow.connections import clear_registry
from ematix_flow.ops.cli import main


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    clear_registry()


def test_a_connection_that_is_set_is_listed_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connections", "list"]) == 0
    assert "no connections are declared" in capsys.readouterr().out
    assert main(["connections", "set", "warehouse", "postgresql://me:${PG_PASSWORD}@h/db"]) == 0
    assert main(["connections", "list"]) == 0
    header, line = capsys.readouterr().out.splitlines()[1:]
    assert header.split() == ["CONNECTION", "KIND", "DECLARED", "IN"]
    assert line.split()[:2] == ["warehouse", "postgres"]
    assert "connections.toml" in line


def test_what_cannot_be_used_is_listed_with_its_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_LAKE", "hunter2")
    monkeypatch.setenv("EMATIX_FLOW_DSN_EMPTY", "")
    assert main(["connections", "list", "--format", "json"]) == 0
    out = capsys.readouterr().out
    (lake,) = json.loads(out)["connections"]
    assert lake["kind"] is None
    assert "environment variable EMATIX_FLOW_DSN_LAKE: not a URL" in lake["problem"]["message"]
    assert "hunter2" not in out


def test_check_resolves_references(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".ematix-flow.toml").write_text(
        '[connections.db]\ndsn = "postgresql://me:${PG_PASSWORD}@h/db"\n[connections.lake]\ndsn = "duckdb:///x.db"\n'
    )
    monkeypatch.delenv("PG_PASSWORD", raising=False)
    assert main(["connections", "check"]) == 1
    told = capsys.readouterr()
    assert told.out == "lake: duckdb, in order, not connected to\n"
    assert told.err.startswith("db: error[secret-not-found]: ${PG_PASSWORD}")
    assert main(["connections", "check", "lake", "nobody", "--format", "json"]) == 2
    known, unknown = json.loads(capsys.readouterr().out)["connections"]
    assert known == {"name": "lake", "kind": "duckdb", "in_order": True, "reached": False}
    assert (unknown["in_order"], unknown["problem"]["code"]) == (False, "unknown-connection")


def test_check_asks_databases_whether_they_are_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sqlite3.connect(tmp_path / "there.db").execute("CREATE TABLE t (a)").connection.close()
    (tmp_path / "torn.db").write_text("no database")
    monkeypatch.setenv("EMATIX_FLOW_DSN_THERE", f"sqlite:///{tmp_path}/there.db")
    monkeypatch.setenv("EMATIX_FLOW_DSN_TORN", f"sqlite:///{tmp_path}/torn.db")
    monkeypatch.setenv("EMATIX_FLOW_DSN_DOWN", "postgresql://me:hunter2@127.0.0.1:1/db")
    assert main(["connections", "check"]) == 1
    told = capsys.readouterr()
    assert told.out == "there: sqlite, in order\n"
    assert 'down: error[unreachable]: connection "down": PostgreSQL at 127.0.0.1:1/db' in told.err
    assert "refused" in told.err
    assert 'torn: error[unreachable]: connection "torn": SQLite at' in told.err
    assert "hunter2" not in told.err


def test_a_bad_dsn_is_not_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["connections", "set", "lake", "postgress://h/db"]) == 2
    assert 'did you mean "postgres"?' in capsys.readouterr().err
    assert not (tmp_path / "home").exists()
