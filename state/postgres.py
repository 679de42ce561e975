"""A vault in a Postgres database: a few small tables, made on first use in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.state.holder import Holder
from ematix_flow.state.postgres_session import PostgresSession
from ematix_flow.state.vault import Held, Kept, Leased, LeaseLost, contents, digest_of, parts_of

if TYPE_CHECKING:
    from psycopg import Connection

    from ematix_flow.state.postgres_letters import PostgresDeadLetters

_SHELVES = "shelf/"
_FIELDS = ("pipeline", "generation", "path", "part", "size", "digest", "content")
_TYPES = ("text", "text", "text", "int4", "int8", "text", "bytea")


class PostgresVault:
    """Saves go over one connection, heartbeats over another, so that a long save does not look like silence."""

    def __init__(self, pipeline: str, url: str, schema: str) -> None:
        self._pipeline = pipeline
        # Told apart in pg_stat_activity; names there are cut after 63 bytes.
        named = f"ematix-flow {hashlib.sha256(pipeline.encode()).hexdigest()[:16]}"
        self._name = named
        self._saves = PostgresSession(url, schema, named)
        self._beats = PostgresSession(url, schema, f"{named} lease")
        self.place = self._saves.place

    def latest(self) -> Held | None:
        def ask(db: Connection[Any]) -> Held | None:
            # One statement, so that no save comes in between.
            found = db.execute(
                "SELECT generation, save, batch, saved_at, path, size, digest FROM ematix_flow_pipelines "
                "JOIN ematix_flow_files USING (pipeline, generation) WHERE pipeline = %s AND part = 0",
                [self._pipeline],
            ).fetchall()
            if not found:
                return None
            generation, save, batch, saved_at = found[0][:4]
            files = {path: Kept(path, size, digest) for *_, path, size, digest in found}
            return Held(generation, save, batch, saved_at, files)

        return self._saves.look(ask, None)

    def read(self, generation: str, paths: Collection[str]) -> Iterator[tuple[str, bytes]]:
        for path in paths:
            if parts := self._saves.run(partial(self._parts, generation, path)):
                yield path, b"".join(parts)

    def save(
        self, generation: str, batch: int | None, put: Mapping[str, Path], gone: Collection[str], token: int
    ) -> int:
        def write(db: Connection[Any]) -> int:
            self._write(db, generation, contents(put), [*put, *gone])
            # Last, because heartbeats wait for the row from here on.
            found = db.execute(
                "UPDATE ematix_flow_pipelines SET save = save + 1, saved_at = now(), generation = %(generation)s, "
                "batch = CASE WHEN generation = %(generation)s THEN COALESCE(%(batch)s, batch) ELSE %(batch)s END "
                "WHERE pipeline = %(pipeline)s AND token = %(token)s AND holder IS NOT NULL RETURNING save",
                {"generation": generation, "batch": batch, "pipeline": self._pipeline, "token": token},
            ).fetchone()
            if found is None:
                raise LeaseLost(self._pipeline, self.lease())
            return int(found[0])

        return self._saves.run(write)

    def lease(self) -> Leased | None:
        def ask(db: Connection[Any]) -> Leased | None:
            found = db.execute(
                "SELECT holder, token, beat, extract(epoch FROM clock_timestamp() - beat_at)::float8 "
                "FROM ematix_flow_pipelines WHERE pipeline = %s AND holder IS NOT NULL",
                [self._pipeline],
            ).fetchone()
            return Leased(Holder.from_text(found[0]), *found[1:]) if found else None

        return self._beats.look(ask, None)

    def take(self, holder: Holder, instead_of: Leased | None) -> int | None:
        def write(db: Connection[Any]) -> int | None:
            if instead_of is not None:
                # A process that was paused in the middle of a transaction would keep its locks for as long as it is.
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity, ematix_flow_pipelines "
                    "WHERE application_name = %s AND usename = current_user "
                    "AND pipeline = %s AND token = %s AND beat = %s",
                    [f"{self._name} {instead_of.token}", self._pipeline, instead_of.token, instead_of.beat],
                )
            found = db.execute(
                "INSERT INTO ematix_flow_pipelines AS p (pipeline, holder, token, save, beat, beat_at) "
                "VALUES (%(pipeline)s, %(holder)s, 1, 0, 0, now()) ON CONFLICT (pipeline) DO UPDATE "
                "SET holder = excluded.holder, token = p.token + 1, beat = p.beat + 1, beat_at = now() "
                "WHERE p.holder IS NULL OR (p.token = %(seen)s AND p.beat = %(beat)s) RETURNING token",
                {
                    "pipeline": self._pipeline,
                    "holder": holder.as_text(),
                    "seen": instead_of.token if instead_of else None,
                    "beat": instead_of.beat if instead_of else None,
                },
            ).fetchone()
            return int(found[0]) if found else None

        token = self._beats.run(write)
        if token is not None:
            self._saves.rename(f"{self._name} {token}")
        return token

    def beat(self, token: int) -> bool:
        return self._changes(
            "UPDATE ematix_flow_pipelines SET beat = beat + 1, beat_at = now() "
            "WHERE pipeline = %s AND token = %s AND holder IS NOT NULL",
            [self._pipeline, token],
        )

    def mine(self, token: int) -> bool:
        def ask(db: Connection[Any]) -> bool:
            sql = "SELECT 1 FROM ematix_flow_pipelines WHERE pipeline = %s AND token = %s AND holder IS NOT NULL"
            return db.execute(sql, [self._pipeline, token]).fetchone() is not None

        return self._saves.run(ask)

    def leave(self, token: int) -> None:
        self._changes(
            "UPDATE ematix_flow_pipelines SET holder = NULL WHERE pipeline = %s AND token = %s", [self._pipeline, token]
        )

    def dead_letters(self, generation: str) -> PostgresDeadLetters:
        from ematix_flow.state.postgres_letters import PostgresDeadLetters

        return PostgresDeadLetters(self._pipeline, self._saves.another("letters"), generation)

    def shelf(self, name: str) -> dict[str, bytes]:
        def ask(db: Connection[Any]) -> dict[str, bytes]:
            sql = "SELECT path, content FROM ematix_flow_files WHERE pipeline = %s AND generation = %s ORDER BY part"
            found: dict[str, bytes] = {}
            for path, content in db.execute(sql, [self._pipeline, _SHELVES + name]):
                found[path] = found.get(path, b"") + content
            return found

        return self._beats.look(ask, {})

    def put_on_shelf(self, name: str, put: Mapping[str, bytes], gone: Collection[str] = ()) -> None:
        self._beats.run(lambda db: self._write(db, _SHELVES + name, put.items(), [*put, *gone]))

    def compact(self) -> int:
        def write(db: Connection[Any]) -> int:
            found = db.execute(
                "WITH dropped AS (DELETE FROM ematix_flow_files f USING ematix_flow_pipelines p "
                "WHERE f.pipeline = %s AND p.pipeline = f.pipeline AND f.generation <> p.generation "
                "AND NOT starts_with(f.generation, %s) RETURNING length(f.content) AS size) "
                "SELECT COALESCE(sum(size), 0)::int8 FROM dropped",
                [self._pipeline, _SHELVES],
            ).fetchone()
            return int(found[0]) if found else 0

        return self._saves.run(write)

    def close(self) -> None:
        self._saves.close()
        self._beats.close()

    def _changes(self, sql: str, values: list[Any]) -> bool:
        return self._beats.run(lambda db: db.execute(sql, values).rowcount > 0)

    def _parts(self, generation: str, path: str, db: Connection[Any]) -> list[bytes]:
        parts = db.cursor(binary=True).execute(
            "SELECT content FROM ematix_flow_files WHERE pipeline = %s AND generation = %s AND path = %s ORDER BY part",
            [self._pipeline, generation, path],
        )
        return [content for (content,) in parts]

    def _write(
        self,
        db: Connection[Any],
        generation: str,
        files: Iterator[tuple[str, bytes]] | Collection[tuple[str, bytes]],
        replaced: list[str],
    ) -> None:
        db.execute(
            "DELETE FROM ematix_flow_files WHERE pipeline = %s AND generation = %s AND path = ANY(%s)",
            [self._pipeline, generation, replaced],
        )
        sql = f"COPY ematix_flow_files ({', '.join(_FIELDS)}) FROM STDIN (FORMAT BINARY)"
        with db.cursor() as cursor, cursor.copy(sql) as copy:
            copy.set_types(_TYPES)
            for path, content in files:
                digest = digest_of(content)
                for part, some in enumerate(parts_of(content)):
                    copy.write_row((self._pipeline, generation, path, part, len(content), digest, some))
