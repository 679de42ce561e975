"""What a person reads while a pipeline runs and when it has ended."""

import sys
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from ematix_flow.ops.progress import Progress, batch_line
from ematix_flow.ops.running import result_text
from ematix_flow.ops.settings import Settings
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec
from ematix_flow.streams.open_windows import Told
from ematix_flow.streams.runner import BatchReport
from ematix_flow.toml import load_toml
from tests.orders import Orders

REPORT = BatchReport(
    "orders", 3, 1000, {"orders": 998}, {"decode": 2}, {}, {"plan": 0.0, "stage": 0.3, "save": 0.004, "apply": 0.05}
)


@pytest.fixture
def spec(orders: Orders) -> PipelineSpec:
    return load_toml(text=orders.toml(on_error="dlq"))[0]


def test_a_batch_is_one_line() -> None:
    assert batch_line(REPORT) == (
        "orders batch 3: 1,000 rows, 998 written, 2 set aside, 0.35 s (stage 0.30, apply 0.05)"
    )
    told = Told(late=Counter(drop=2, reopen=1))
    assert (
        batch_line(BatchReport("o", 0, 5, {"o": 1}, {}, {"transform": 1}, {"stage": 0.001}, told))
        == "o batch 0: 5 rows, 1 written, 3 late, 1 dropped, 0.00 s"
    )


def test_without_a_terminal_each_batch_stays(spec: PipelineSpec, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(spec, Settings()) as progress:
        progress.batch(REPORT)
    assert capsys.readouterr().err.splitlines() == ["orders: starting Spark ...", batch_line(REPORT)]


def test_on_a_terminal_one_line_lives_and_is_gone_at_the_end(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress(spec, Settings()) as progress:
        progress.batch(REPORT)
        progress.batch(REPORT)
    written = capsys.readouterr().err
    assert "\n" not in written
    assert "orders: 2 batches, 2,000 rows, " in written
    assert written.endswith("\r\x1b[2K")


def test_the_live_line_goes_on_between_batches(
    spec: PipelineSpec, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    now = 0.0
    with Progress(spec, Settings(), clock=lambda: now) as progress:
        now = 5.0
        progress.batch(REPORT)
        counts = "orders: 1 batch, 1,000 rows, {} rows/s, 2 set aside; last 0.35 s (stage 0.30, apply 0.05)"
        assert counts.format(200) in capsys.readouterr().err
        now = 60.0
        deadline, written = time.monotonic() + 30, ""
        while counts.format(0) not in written:
            assert time.monotonic() < deadline, written
            written += capsys.readouterr().err


def test_json_logs_replace_it(spec: PipelineSpec, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(spec, Settings(log_format="json")) as progress:
        progress.batch(REPORT)
    assert capsys.readouterr().err == ""


def test_a_reader_of_stderr_that_went_away_does_not_end_the_pipeline(
    spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys.stderr, "write", gone, raising=False)
    with Progress(spec, Settings()) as progress:
        progress.batch(REPORT)


def test_the_result_tells_what_was_set_aside_and_where_it_is(spec: PipelineSpec) -> None:
    result = RunResult(
        "orders",
        "success",
        batches=2,
        rows_consumed=1003,
        rows_written={"orders": 998},
        dlq_rows={"decode": 2, "transform": 3},
        watermark=datetime(2026, 3, 2, tzinfo=UTC),
        duration_seconds=3.14,
    )
    assert result_text(result, spec).splitlines() == [
        "orders: done, 2 batches in 3.1 s",
        "  rows read     1,003",
        "  rows written  998 to orders",
        "  dead letters  5 (decode 2, transform 3), see `flow dlq list orders`",
        "  watermark     2026-03-02T00:00:00+00:00",
    ]
    assert result_text(RunResult("orders", "stopped"), spec) == (
        "orders: stopped as asked, 0 batches in 0.0 s; there was nothing new to read"
    )
