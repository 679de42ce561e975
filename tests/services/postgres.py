"""PostgreSQL for tests: one that is given, one in a container, or one of our own, which can be made to go away."""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest

from tests.services.server import Server

_PASSWORD = "corr3ct h0rse"
# With fsync off a test of a crash would prove nothing; nowhere else does anybody pull the plug.
_QUICK = ("fsync=off", "full_page_writes=off")
_FOR_CHANGES = ("wal_level=logical", "max_wal_senders=10", "max_replication_slots=10")


class Postgres:
    """A server, wherever it runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def new_database(self) -> str:
        name = f"t{uuid4().hex}"
        self.query(self.url, f"CREATE DATABASE {name}")
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    @staticmethod
    def query(url: str, sql: str) -> list[tuple[Any, ...]]:
        """The rows, if the statement gives any."""
        with psycopg.connect(url, autocommit=True) as db:
            found = db.execute(sql.encode())
            return found.fetchall() if found.description else []


class OwnPostgres(Server, Postgres):
    """A process of our own. `kill` is a crash: what was committed is there after `start`, unlogged tables are empty."""

    user = "postgres"
    # Without waiting for clients to leave.
    ends_by = signal.SIGINT

    def __init__(self, *, tls: bool = False, durable: bool = False) -> None:
        super().__init__()
        self._data = self.folder / "data"
        self._settings = [*_FOR_CHANGES, *(() if durable else _QUICK)]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._make()
        if tls:
            self._demand_tls()
        self.start()

    def command(self) -> Sequence[str]:
        settings = [part for setting in self._settings for part in ("-c", setting)]
        place = ["-D", str(self._data), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]
        return [_program("postgres"), *place, *settings]

    def answers(self) -> bool:
        try:
            self.query(self.url, "SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        # All at once and without a checkpoint. After SIGKILL its children would hold on to the data for a while.
        self.stop(signal.SIGQUIT)

    def with_password(self, password: str) -> str:
        return self.url.replace(_in_url(_PASSWORD), _in_url(password))

    def _make(self) -> None:
        password = self.folder / "password"
        password.write_text(_PASSWORD, encoding="utf-8")
        password.chmod(0o644)
        self.run(
            _program("initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync",
            "-E", "UTF8", "--locale=C.UTF-8", f"--pwfile={password}",
        )  # fmt: skip

    def _demand_tls(self) -> None:
        key, certificate = self._data / "server.key", self._data / "server.crt"
        self.run(
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
        )  # fmt: skip
        key.chmod(0o600)
        (self._data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n", encoding="utf-8")
        self._settings.append("ssl=on")
        self.folder.chmod(0o755)
        known = self.folder / "server.crt"
        shutil.copy(certificate, known)
        self.url = (
            f"postgresql://postgres:{_in_url(_PASSWORD)}@127.0.0.1:{self.port}/postgres"
            f"?sslmode=verify-full&sslrootcert={known}"
        )


@functools.cache
def postgres() -> Postgres:
    """One for all tests of this process."""
    if given := os.environ.get("EMATIX_TEST_POSTGRES_URL"):
        return Postgres(given)
    if importlib.util.find_spec("testcontainers") and _docker_answers():
        return _in_a_container()
    if _folder_of_programs() is None:
        pytest.fail(
            "these tests need PostgreSQL: set EMATIX_TEST_POSTGRES_URL to a server on which databases may be created, "
            "or start Docker and `pip install testcontainers`, or install the server (Debian: apt install postgresql)"
        )
    return OwnPostgres()


@contextmanager
def own_postgres(*, tls: bool = False, durable: bool = False) -> Iterator[OwnPostgres]:
    """One for this test alone, which may kill it."""
    server = OwnPostgres(tls=tls, durable=durable)
    try:
        yield server
    finally:
        server.remove()


def _in_a_container() -> Postgres:
    from testcontainers.postgres import PostgresContainer

    # Its own companion container ends it with this process.
    container = PostgresContainer("postgres:15", driver=None)
    container.start()
    return Postgres(container.get_connection_url())


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def _program(name: str) -> str:
    folder = _folder_of_programs()
    assert folder is not None
    return str(folder / name)


def _folder_of_programs() -> Path | None:
    """Debian keeps them apart by version and off the path."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda program: int(program.parts[-3]))
    return versions[-1].parent if versions else None


def _in_url(text: str) -> str:
    return text.replace(" ", "%20")
