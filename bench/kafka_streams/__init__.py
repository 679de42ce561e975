"""Kafka Streams as a contender: one warm Java process, which a benchmark tells what to do."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.services.kafka import VERSION
from tests.services.libraries import java, libraries

_COORDINATES = (f"org.apache.kafka:kafka-streams:{VERSION}", "org.slf4j:slf4j-reload4j:1.7.36")
_LOG4J = """
log4j.rootLogger=ERROR, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d %p %c %m%n
"""
# A thread per core and partition.
_SETTINGS = {"num.stream.threads": 2, "auto.offset.reset": "earliest", "replication.factor": 1}
FOR_THROUGHPUT = {
    "commit.interval.ms": 1000,
    "max.poll.records": 5000,
    "buffered.records.per.partition": 10_000,
    "batch.size": 256 << 10,
    "statestore.cache.max.bytes": 64 << 20,
}
FOR_LATENCY = {"commit.interval.ms": 100, "linger.ms": 5}


class KafkaStreams:
    def __init__(self, process: subprocess.Popen[str], bootstrap: str, folder: str) -> None:
        self._process, self._bootstrap, self._folder = process, bootstrap, folder

    def start(
        self, source: str, target: str, guarantee: str, settings: Mapping[str, Any], *, rows: str, windows: bool
    ) -> None:
        """Rows are `orders` or `sent`: passed on as they are, or counted and added up by customer and second."""
        given = {
            "application.id": uuid4().hex,
            "bootstrap.servers": self._bootstrap,
            "state.dir": self._folder,
            "processing.guarantee": guarantee,
        }
        work = {"source": source, "target": target, "rows": rows, "windows": windows}
        self._tell(json.dumps(work | {"settings": _SETTINGS | given | dict(settings)}))
        self._hear("done")

    def finish(self) -> None:
        """Until all that is there was passed on and committed."""
        self._tell("finish")
        self._hear("committed")

    def closed(self) -> None:
        """After `finish`: until nothing of the run is busy any more."""
        self._hear("done")

    def stop(self) -> None:
        self._tell("stop")
        self._hear("done")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self, expected: str) -> None:
        assert self._process.stdout is not None
        heard = self._process.stdout.readline().strip()
        assert heard == expected, f"Kafka Streams said {heard!r} instead of {expected}"


@contextmanager
def kafka_streams(bootstrap: str) -> Iterator[KafkaStreams]:
    jars = f"{libraries(f'kafka-streams-{VERSION}', *_COORDINATES)}/*"
    with tempfile.TemporaryDirectory(prefix="kafka-streams-") as folder:
        log = Path(folder, "log4j.properties")
        log.write_text(_LOG4J, encoding="utf-8")
        sources = sorted(map(str, Path(__file__).parent.glob("*.java")))
        subprocess.run([java("javac"), "-cp", jars, "-d", f"{folder}/classes", *sources], check=True)
        command = [java(), "-Xmx2g", f"-Dlog4j.configuration=file:{log}", "-cp", f"{folder}/classes:{jars}", "Rival"]
        process = subprocess.Popen([*command, bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            yield KafkaStreams(process, bootstrap, f"{folder}/state")
        finally:
            process.terminate()
            process.wait(30)
