"""Dead letters in the Postgres database of a state store, beside those of other pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from ematix_flow.state.dead_letters import Cursor, DeadLetters, Dialect
from ematix_flow.state.postgres_session import PostgresSession

R = TypeVar("R")


class _PostgresDialect(Dialect):
    def value(self, value: object) -> object:
        # Postgres keeps no NUL in a text, and a message may quote one.
        return value.replace("\x00", "\N{SYMBOL FOR NULL}") if isinstance(value, str) else value


class PostgresDeadLetters(DeadLetters):
    dialect = _PostgresDialect(
        letters="ematix_flow_dead_letters",
        replayed="ematix_flow_replayed",
        key=("letters_of", "id"),
        one_of="= ANY({})",
        collation="C",
        named="%({})s",
    )

    def __init__(self, pipeline: str, session: PostgresSession, generation: str = "") -> None:
        self._facts = {"generation": generation, "letters_of": pipeline}
        self._session = session

    def close(self) -> None:
        self._session.close()

    def _run(self, work: Callable[[Cursor], R]) -> R:
        return self._session.run(lambda db: work(cast(Cursor, db.cursor(binary=True))))
