"""What `flow doctor` finds on a machine."""

import json
from pathlib import Path

import pytest

from ematix_flow.ops import doctor
from ematix_flow.ops.cli import main


@pytest.fixture(autouse=True)
def clean_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("EMATIX_FLOW_JAR_CACHE", str(tmp_path / "jars"))


def examined(capsys: pytest.CaptureFixture[str], *, code: int = 0) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--format", "json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is (code == 0)
    return {check["name"]: check for check in answer["checks"]}


def java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(0o755)
    return folder


def test_a_machine_that_can_run_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    checks = examined(capsys)
    assert checks["pyspark"] == {"name": "pyspark", "status": "ok", "found": "4.2.0", "next_step": ""}
    assert {"python", "java", "pandas", "cores", "memory", "home", "jars kafka", "extra kafka", "connections"} <= set(
        checks
    )
    assert checks["jars kafka"]["found"].startswith("0 of 4 fetched")
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("\n\neverything is in order\n")


@pytest.mark.parametrize(("version", "status"), [("1.8.0_392", "problem"), ("11.0.2", "problem"), ("21.0.1", "ok")])
def test_the_java_of_java_home_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, status: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", version)))
    found = examined(capsys, code=int(status == "problem"))["java"]
    assert found["status"] == status
    assert version in found["found"]


def test_without_java_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "problem  java" in told
    assert "-> install Java 17" in told
    assert told.endswith("\n1 problem\n")


def test_a_home_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "file" / "home"))
    assert examined(capsys, code=1)["home"]["status"] == "problem"


def test_connections_are_shown_with_their_origin_and_without_their_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", "postgresql://u:hunter2@h/db")
    (tmp_path / ".ematix-flow.toml").write_text('[connections.lake]\nkind = "object_store_locl"\n')
    checks = examined(capsys, code=1)
    assert checks["connection warehouse"]["status"] == "ok"
    assert "environment variable EMATIX_FLOW_DSN_WAREHOUSE" in checks["connection warehouse"]["found"]
    assert checks["connection lake"]["status"] == "problem"
    assert 'did you mean "object_store_local"' in checks["connection lake"]["found"]
    assert "hunter2" not in json.dumps(checks)


def test_a_driver_that_a_known_connection_needs_is_a_warning_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_EVENTS", "kafka://h:9092")
    installed = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "confluent-kafka" else installed(name))
    checks = examined(capsys)
    assert checks["connection events"]["status"] == "warning"
    assert checks["connection events"]["next_step"] == "pip install 'ematix-flow-spark[kafka]'"
    assert checks["extra kafka"]["found"].startswith("not installed (optional): confluent-kafka")


@pytest.mark.parametrize(
    ("found", "wanted", "fits"),
    [("2.3.3", ">=2.2,<3", True), ("3.0.0", ">=2.2,<3", False), ("4.1.0", "==4.2.0", False)],
)
def test_versions_are_compared_as_numbers(found: str, wanted: str, fits: bool) -> None:
    assert doctor._fits(found, wanted) is fits
