"""`flow consume` from Kafka to Kafka, exactly once: fed all the time, its broker killed, told to stop at last."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.kafka import own_kafka
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
                assert lag(url) == 0
                daemon.terminate()
                output, _ = daemon.communicate(timeout=SECONDS)
            finally:
                daemon.kill()
        assert daemon.returncode == 0, (tmp_path / "log").read_text()
        assert json.loads(output)["status"] == "stopped"
        assert sorted(row["id"] for row in broker.values(target)) == list(range(sent))


def lag(url: str) -> float:
    with urllib.request.urlopen(url.replace("0.0.0.0", "127.0.0.1"), timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [float(line.split()[-1]) for line in lines if line.startswith("ematix_streaming_consumer_lag{")]
    assert len(found) == 2
    return sum(found)


def wait_until(condition: Callable[[], bool]) -> None:
    """Longer than others wait: a start of Java may lie in between."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
