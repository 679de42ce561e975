"""Whether what a connection leads to answers: databases and Kafka are asked, folders are only named."""

from __future__ import annotations

from pathlib import Path

from ematix_flow.connections import DuckDBConnection, KafkaConnection, SQLiteConnection
from ematix_flow.connections.base import Connection
from ematix_flow.errors import FlowError

# SQLite opens a file without looking into it.
_QUESTIONS = {"sqlite": "SELECT count(*) FROM sqlite_master"}


class Unreachable(FlowError):
    """A connection that is declared correctly and leads to nothing that answers."""

    code = "unreachable"


def reached(connection: Connection) -> bool:
    """Whether it was asked and answered; raises what stands in the way. False: there was nobody to ask."""
    if isinstance(connection, KafkaConnection):
        return _cluster(connection)
    if isinstance(connection, SQLiteConnection | DuckDBConnection) and not Path(connection.path).is_file():
        return False  # the first run makes it
    return _database(connection)


def _cluster(connection: KafkaConnection) -> bool:
    from ematix_flow.sinks.kafka_client import asked, topics

    asked(connection, topics)
    return True


def _database(connection: Connection) -> bool:
    from ematix_flow.streams.sources.database.base import SourceRefused
    from ematix_flow.streams.sources.database.source import DATABASES

    if connection.kind not in DATABASES:
        return False
    database = DATABASES[connection.kind](connection, f'connection "{connection.name}"')
    try:
        with database.in_words():
            database.rows(_QUESTIONS.get(connection.kind, "SELECT 1"))
    except SourceRefused as error:
        raise Unreachable(error.found, next_step="check address, user and password, and whether it runs") from error
    return True
