"""A small pipeline between Kafka topics and tables, for tests that state only what differs from it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb

from ematix_flow import run_pipeline
from ematix_flow.result import RunResult
from tests.services.kafka import Kafka

SCHEMA = "id long, amount double"


class Topics:
    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.database = folder / "orders.db"

    def toml(
        self,
        source: str,
        *,
        name: str = "orders",
        connection: str = "",
        reading: str = "",
        schema: str | None = SCHEMA,
        sql: str | None = None,
        on_error: str = "fail",
        target: str | None = None,
        writing: str = "",
        top: str = "",
        more: str = "",
    ) -> str:
        """Into a table, or into the topic `target`."""
        cluster = f'kind = "kafka"\nbootstrap_servers = "{self.kafka.bootstrap}"\n{connection}'
        lines = [f'pipeline_name = "{name}"', top, "[source]", cluster, f"query = '{source}'", reading]
        lines += [f'schema = "{schema}"' if schema else "", "[transform]", f'on_error = "{on_error}"']
        lines += [f'sql = """{sql}"""' if sql else "", "[target]"]
        if target is None:
            lines += ['kind = "duckdb"', f'path = "{self.database}"', 'table = "orders"', writing]
        else:
            lines += [cluster, f'topic = "{target}"', writing]
        return "\n".join([*lines, more])

    def run(self, source: str, **declaration: Any) -> RunResult:
        return run_pipeline(config_str=self.toml(source, **declaration), bounded=True)

    def in_database(self, query: str = "SELECT * FROM orders ORDER BY ALL") -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.database), read_only=True) as db:
            return db.execute(query).fetchall()


def numbered(ids: Iterable[int]) -> list[Mapping[str, Any]]:
    return [{"id": i, "amount": i / 2} for i in ids]
