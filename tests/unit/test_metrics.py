"""What Prometheus and Kubernetes see of a running pipeline, over HTTP."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ematix_flow import run_pipeline
from ematix_flow.errors import UsageError
from ematix_flow.ops import api
from ematix_flow.ops.health import STUCK_AFTER, Health
from ematix_flow.ops.metrics import Metrics
from ematix_flow.ops.serving import HOST, MetricsPortTaken, Watch, watched
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.toml import load_toml
from tests.orders import Orders
from tests.waiting import wait_for

REPORT = BatchReport("orders", 3, 1000, {"orders": 998}, {"decode": 2}, {}, {"plan": 0.0, "stage": 0.3, "apply": 0.05})


@pytest.fixture
def declared(orders: Orders) -> Callable[[str], PipelineSpec]:
    return lambda policy: load_toml(text=orders.toml(on_error=policy))[0]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_every_batch_is_counted(declared: Callable[[str], PipelineSpec]) -> None:
    metrics = Metrics(declared("dlq"), restarts=2)
    assert metrics.value("rows_written_total", target="orders") == 0
    assert metrics.value("last_commit_timestamp") == 0
    metrics.batch(REPORT)
    metrics.batch(REPORT)
    assert metrics.value("rows_consumed_total") == 2000
    assert metrics.value("rows_written_total", target="orders") == 1996
    assert metrics.value("batches_total") == 2
    assert metrics.value("dlq_writes_total", stage="decode") == 4
    assert metrics.value("rows_dropped_total", stage="decode") is None
    assert metrics.value("batch_duration_seconds_count", step="stage") == 2
    assert metrics.value("batch_duration_seconds_sum", step="stage") == 0.6
    assert metrics.value("batch_duration_seconds_bucket", step="stage", le="0.25") == 0
    assert (metrics.value("last_commit_timestamp") or 0) > 1_700_000_000
    assert metrics.value("restarts_total") == 2
    assert metrics.value("end_to_end_latency_seconds_count") == 0
    at = int((time.time() - 20) * 1_000_000)
    for report in (replace(REPORT, latest=at), replace(REPORT, latest=at, written={"orders": 0})):
        metrics.batch(report)
    assert metrics.value("end_to_end_latency_seconds_count") == 1
    assert 20 <= (metrics.value("end_to_end_latency_seconds_sum") or 0) < 30

    dropping = Metrics(declared("drop"))
    dropping.batch(replace(REPORT, dead={}, dropped={"decode": 2}))
    assert dropping.value("rows_dropped_total", stage="decode") == 2
    assert dropping.value("dlq_writes_total", stage="decode") is None


def test_they_are_served_while_the_pipeline_runs(
    declared: Callable[[str], PipelineSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST, "127.0.0.1")
    with watched(declared("dlq").model_copy(update={"idle_pause_ms": 0}), 0) as watch:
        assert watch.url is not None
        base, port = watch.url.removesuffix("/metrics"), int(watch.url.split(":")[2].split("/")[0])
        assert get(f"{base}/healthz") == (200, '{"ok": true, "reason": "the process is alive"}')
        assert get(f"{base}/readyz") == (503, '{"ok": false, "reason": "starting"}')
        watch.batch(REPORT)
        assert get(f"{base}/readyz?verbose") == (200, '{"ok": true, "reason": "batch 3 was committed"}')
        status, text = get(watch.url)
        assert status == 200
        assert 'ematix_streaming_rows_written_total{pipeline="orders",target="orders"} 998.0' in text.splitlines()
        watch.health.started(lambda: True)
        wait_for(lambda: (watch.metrics.value("idle_iterations_total") or 0) >= 2)
        status, text = get(f"{base}/")
        assert status == 404
        assert json.loads(text)["error"] == "there is no /; there are /metrics, /healthz and /readyz"

        with pytest.raises(MetricsPortTaken, match=f"on 127.0.0.1:{port}: Address already in use") as taken:
            watched(declared("dlq"), port).__enter__()
        assert HOST in taken.value.next_step

    with pytest.raises(urllib.error.URLError):
        get(watch.url)


def test_the_port_is_the_callers_or_the_declared_one(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []

    @contextmanager
    def watched(spec: PipelineSpec, port: int | None) -> Iterator[Watch]:
        ports.append(port)
        yield Watch(Metrics(spec), Health())

    monkeypatch.setattr(api, "watched", watched)
    monkeypatch.setattr(api, "run_spec", lambda spec, **_: RunResult(spec.name, "success"))
    run_pipeline(config_str="metrics_port = 9100\n" + orders.toml())
    run_pipeline(config_str="metrics_port = 9100\n" + orders.toml(), metrics_port=0)
    run_pipeline(config_str=orders.toml())
    assert ports == [9100, 0, None]


def test_a_run_that_fails_is_counted(declared: Callable[[str], PipelineSpec]) -> None:
    with pytest.raises(ZeroDivisionError), watched(declared("fail"), None, restarts=1) as watch:
        raise ZeroDivisionError
    assert watch.url is None
    assert watch.metrics.value("errors_total") == 2
    assert not watch.health.alive().ok
    assert watch.health.ready().reason == "the pipeline failed: ZeroDivisionError"


def test_ready_means_that_it_commits_or_has_nothing_to_do() -> None:
    now, idle = 0.0, False
    health = Health(stuck_after=600, clock=lambda: now)

    def ready() -> tuple[bool, str]:
        answer = health.ready()
        return answer.ok, answer.reason

    health.started(lambda: idle)
    assert ready() == (False, "looking for input")
    idle = True
    assert ready() == (True, "there is nothing to read")
    health.step("plan", 3)
    assert ready() == (False, "the first batch is in progress")
    health.batch(REPORT)
    assert ready() == (True, "batch 3 was committed")

    health.step("plan", 4)
    now = 500
    health.step("apply", 4)
    assert ready() == (True, "batch 3 was committed")
    now = 601
    assert ready() == (False, "batch 4 is stuck: in step apply, after 601 s")
    assert health.alive().ok
    health.step("plan", 5)
    assert ready() == (True, "batch 3 was committed")
    health.ended("the pipeline has ended")
    assert ready() == (False, "the pipeline has ended")
    assert not health.alive().ok


def test_spark_that_is_gone_is_not_ready() -> None:
    def nobody() -> bool:
        raise ConnectionRefusedError

    health = Health()
    health.started(nobody)
    assert health.ready().reason == "Spark does not answer"


def test_how_long_a_batch_may_take_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STUCK_AFTER, "soon")
    with pytest.raises(UsageError, match="EMATIX_FLOW_STUCK_AFTER_SECS is 'soon'"):
        Health()
