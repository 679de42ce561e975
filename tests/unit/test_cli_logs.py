"""The log of `flow`: one structured line per event, in a file and on stderr, without secrets."""

import json
import logging
import warnings
from pathlib import Path

import pytest

from ematix_flow.ops.logs import log_file, logging_for
from ematix_flow.ops.settings import Settings

log = logging.getLogger("ematix_flow.test")


def test_events_go_to_the_file_and_only_warnings_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_for(Settings()):
        log.info("batch", extra={"pipeline": "orders", "batch": 3, "note": "two words"})
        log.warning("slow\nas ever", extra={"pipeline": "orders"})
        logging.getLogger("py4j").error("the same again, with a traceback")
        echo = {"name": "root", "msg": "and again", "levelname": "ERROR", "levelno": logging.ERROR}
        logging.getLogger().handle(logging.makeLogRecord(echo | {"pathname": "/lib/py4j/java_gateway.py"}))
    assert capsys.readouterr().err == "warning: slow as ever pipeline=orders\n"
    first, second, third, _ = log_file().read_text().splitlines()
    assert first[23:] == 'Z INFO batch pipeline=orders batch=3 note="two words"'
    assert "WARNING slow as ever" in second
    assert "ERROR the same again" in third


def test_verbose_prints_every_event_and_json_prints_objects(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_for(Settings(verbose=True)):
        log.info("batch", extra={"batch": 3})
    assert capsys.readouterr().err.endswith("Z INFO batch batch=3\n")
    with logging_for(Settings(log_format="json")):
        log.info("batch", extra={"batch": 3, "pipeline": "orders"})
    line = json.loads(capsys.readouterr().err)
    assert line.pop("ts").endswith("Z")
    assert line == {"level": "INFO", "event": "batch", "batch": 3, "pipeline": "orders"}


def test_no_secret_is_written_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for settings in (Settings(verbose=True), Settings(log_format="json")):
        with logging_for(settings):
            log.warning("cannot open postgresql://u:hunter2@h/db", extra={"dsn": "host=h password=hunter2"})
    assert "hunter2" not in capsys.readouterr().err + log_file().read_text()


def test_a_python_warning_becomes_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with logging_for(Settings()):
            warnings.warn("mind the gap", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: mind the gap\n"


def test_nothing_to_log_leaves_no_file_and_a_place_that_cannot_be_written_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_for(Settings()):
        pass
    assert not log_file().parent.exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "file"))
    with logging_for(Settings()):
        log.warning("still here")
    assert capsys.readouterr().err == "warning: still here\n"


def test_a_log_that_another_process_rotated_is_opened_anew() -> None:
    with logging_for(Settings()):
        log.info("one")
        log_file().rename(log_file().with_name("flow.log.1"))
        log.info("two")
    assert "INFO two" in log_file().read_text()
