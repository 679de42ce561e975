"""`flow consume` from Kafka to Kafka, exactly once: fed all the time, its broker killed, told to stop at last."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.kafka import Kafka, own_kafka
from tests.services.toxiproxy import ProxiedKafka, Toxiproxy
from tests.topics import Topics, numbered

FLOW = str(Path(sys.executable).parent / "flow")
SECONDS = 240


@pytest.mark.slow
def test_a_daemon_outlives_its_broker_and_stops_when_asked(tmp_path: Path) -> None:
    with own_kafka() as broker:
        source, target = broker.new_topic(2), broker.new_topic()
        declared = Topics(broker, tmp_path).toml(source, target=target, top='delivery = "exactly_once"')
        (tmp_path / "orders.toml").write_text(declared)
        command = [FLOW, "--log-format=json", "consume", "orders.toml", "--format=json", "--restart-on-error"]
        command += ["--initial-backoff-ms=100", "--max-backoff-ms=1000", "--metrics-port=0"]
        with (
            (tmp_path / "log").open("w") as log,
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log) as daemon,
        ):
            try:
                sent = 0
                for number in range(3):
                    broker.send(source, numbered(range(sent, sent + 500)))
                    sent += 500
                    wait_until(lambda: bool(broker.read(target)))
                    if number == 1:
                        broker.kill()
                        broker.start()
                wait_until(lambda: len(broker.read(target)) >= sent)
                events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
                url = [event["url"] for event in events if event["event"] == "serving"][-1]
                wait_until(lambda: lag(url) == 0)
                daemon.terminate()
                output, _ = daemon.communicate(timeout=SECONDS)
            finally:
                daemon.kill()
        assert daemon.returncode == 0, (tmp_path / "log").read_text()
        assert json.loads(output)["status"] == "stopped"
        assert sorted(row["id"] for row in broker.values(target)) == list(range(sent))


@pytest.mark.slow
def test_a_bad_network_delays_rows_and_neither_loses_nor_doubles_them(tmp_path: Path) -> None:
    proxy = Toxiproxy()
    broker = ProxiedKafka(proxy)
    source, target = broker.new_topic(2), broker.new_topic()
    through = Topics(Kafka(f"127.0.0.1:{broker.proxied_port}"), tmp_path)
    (tmp_path / "orders.toml").write_text(through.toml(source, target=target, top='delivery = "exactly_once"'))
    sent, over = [0], threading.Event()

    def load() -> None:
        while not over.wait(0.05):
            broker.send(source, numbered(range(sent[0], sent[0] + 20)))
            sent[0] += 20

    def passes(rows: int = 100) -> None:
        """So many rows more come through."""
        before = len(broker.read(target))
        wait_until(lambda: len(broker.read(target)) >= before + rows)

    command = [FLOW, "--log-format=json", "consume", "orders.toml", "--format=json", "--restart-on-error"]
    command += ["--initial-backoff-ms=100", "--max-backoff-ms=1000"]
    loading = threading.Thread(target=load)
    loading.start()
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log) as daemon,
    ):
        try:
            passes()
            with proxy.spoiled("kafka", "latency", latency=300, jitter=100):
                passes()
            with proxy.spoiled("kafka", "bandwidth", rate=20):
                passes()
            for _ in range(3):
                # Each connection is reset as soon as it says something.
                with proxy.spoiled("kafka", "reset_peer", timeout=0):
                    time.sleep(1)
                passes()
            with proxy.cut("kafka"):
                time.sleep(5)
            passes()
            over.set()
            loading.join()
            wait_until(lambda: len(broker.read(target)) >= sent[0])
            daemon.terminate()
            output, _ = daemon.communicate(timeout=SECONDS)
        finally:
            over.set()
            daemon.kill()
    assert daemon.returncode == 0, (tmp_path / "log").read_text()
    assert json.loads(output)["status"] == "stopped"
    assert sorted(row["id"] for row in broker.values(target)) == list(range(sent[0]))


def lag(url: str) -> float | None:
    """None while Kafka does not answer whoever asks for it."""
    with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1"), timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [float(line.split()[-1]) for line in lines if line.startswith("ematix_streaming_consumer_lag{")]
    assert len(found) in {0, 2}
    return sum(found) if found else None


def wait_until(condition: Callable[[], bool]) -> None:
    """Longer than others wait: a start of Java may lie in between."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
