"""How errors leave `flow`: exit codes, words, JSON; a traceback only when asked for."""

import json
from pathlib import Path

import click
import pytest

from ematix_flow.ops import cli, failing
from ematix_flow.ops.settings import Settings
from ematix_flow.streams.failures import BatchFailed


def test_bad_usage_exits_2_with_the_near_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rum"]) == 2
    assert capsys.readouterr().err.startswith("error[bad-usage]: No such command 'rum'. Did you mean 'run'?\n")
    assert cli.main(["run"]) == 2
    assert "Missing argument 'NAME|FILE.toml'" in capsys.readouterr().err
    assert cli.main(["run", "x", "--format", "json", "--bound"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["code"] == "bad-usage"
    assert told.err == ""


def test_a_range_needs_an_end_a_position_and_a_source_that_has_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = 'kind = "kafka"\nbootstrap_servers = "127.0.0.1:1"\n'
    for name, source in {"k": f'{kafka}query = "t"', "f": 'kind = "object_store_local"\npath = "in.csv"'}.items():
        text = f'pipeline_name = "{name}"\n[source]\n{source}\n[target]\n{kafka}topic = "o"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    wrong = {
        ("k.toml", "--from", "1"): "a range has an end, and this run has none",
        ("k.toml", "--bounded", "--to", "soon"): '--to: found "soon", which is no position',
        ("k.toml", "--bounded", "--from", "0=a"): '--from: found "0=a", which is no position',
        ("k.toml", "--bounded", "--from", "2026-02-02", "--to", "2026-02-01"): "--from 2026-02-02 comes after --to",
        ("k.toml", "--bounded", "--from", "2", "--to", "1"): "--from 2 comes after --to 1",
        ("k.toml", "--bounded", "--from", "latest", "--to", "earliest"): "--from latest comes after --to earliest",
        ("f.toml", "--bounded", "--to", "2h"): "source 'source' is of kind object_store_local, of which no range",
    }
    for (file, *options), words in wrong.items():
        assert cli.main(["run", str(tmp_path / file), *options]) == 2
        assert words in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.fixture
def failing_command(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("fail")
    def fail() -> None:
        raise KeyError("postgresql://u:hunter2@h/db")

    monkeypatch.setitem(cli.flow.commands, "fail", fail)


@pytest.mark.usefixtures("failing_command")
def test_an_unexpected_error_is_one_paragraph_and_its_story_is_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fail"]) == 1
    told = capsys.readouterr().err
    log = tmp_path / ".ematix-flow" / "logs" / "flow.log"
    assert told.startswith("error[unexpected]: KeyError: ")
    assert f"the whole error is in {log}" in told
    assert "flow --debug" in told
    assert "Traceback" not in told
    assert "Traceback" in log.read_text()
    assert "hunter2" not in told + log.read_text()


@pytest.mark.usefixtures("failing_command")
def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--debug", "fail"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert 'in fail\n    raise KeyError("postgresql://u:***@h/db")' in told


def test_errors_are_json_lines_when_the_log_is(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(log_format="json")
    error = BatchFailed("batch 3 failed: password=hunter2", next_step="look")
    assert failing.report(error, settings, json_output=False) == 1
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["event"], line["code"]) == ("ERROR", "failed", "batch-failed")
    assert "hunter2" not in json.dumps(line)


def test_ctrl_c_outside_of_a_run_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing.report(click.Abort(), Settings(), json_output=False) == 130
    assert capsys.readouterr().err == "interrupted\n"
