"""MySQL and MariaDB for tests: one that is given, or one of our own, which can be made to go away."""

import functools
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import uuid4

import pymysql

from tests.services import debian
from tests.services.server import Server

_SETTINGS = (
    "--server-id=1", "--log-bin=binlog", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL",
    "--innodb-buffer-pool-size=64M",
)  # fmt: skip
# With a log that is not flushed a test of a crash would prove nothing; nowhere else does anybody pull the plug.
_QUICK = ("--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0")


class MySQL:
    """A server, wherever it runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def new_database(self) -> str:
        name = f"t{uuid4().hex}"
        self.query(self.url, f"CREATE DATABASE {name}")
        return self.within(name)

    def within(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    @staticmethod
    def query(url: str, sql: str) -> list[tuple[Any, ...]]:
        """The rows of the last statement, if it gives any."""
        with closing(connected(url)) as db, db.cursor() as cursor:
            for statement in filter(str.strip, sql.split(";\n")):
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []


def connected(url: str, **options: Any) -> Any:
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.removeprefix("/") or None,
        autocommit=True,
        charset="utf8mb4",
        init_command="SET time_zone = '+00:00'",
        **options,
    )


class _Own(Server, MySQL):
    """A process of our own. `kill` is a crash: what was committed is there after `start`."""

    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__()
        self._data = self.folder / "data"
        self._durable = durable
        self.url = f"mysql://root@127.0.0.1:{self.port}/"
        self._make()
        self.start()

    def _program(self) -> list[str]:
        """The command, without options."""
        raise NotImplementedError

    def _places(self) -> list[str]:
        """Options that tell where the program finds its own files."""
        raise NotImplementedError

    def _make(self) -> None:
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        place = [f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={self.folder}/s.sock"]
        quick = () if self._durable else _QUICK
        return [*self._started(), *place, f"--pid-file={self.folder}/pid", *_SETTINGS, *quick, *self.options]

    def _started(self) -> list[str]:
        # Without the user it would not run as root.
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        return [*self._program(), "--no-defaults", *as_root, f"--datadir={self._data}", *self._places()]

    def answers(self) -> bool:
        try:
            self.query(self.url, "SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True

    def kill(self) -> None:
        self.stop(signal.SIGKILL)


class OwnMariaDB(_Own):
    options = ("--binlog-format=ROW",)

    def _program(self) -> list[str]:
        installed = _installed_mariadb()
        return [installed] if installed else debian.command(_unpacked_mariadb(), "usr/sbin/mariadbd")

    def _places(self) -> list[str]:
        return [] if _installed_mariadb() else _places_in(_unpacked_mariadb())

    def _make(self) -> None:
        """What mariadb-install-db does, which an unpacked server has no use for."""
        share = Path("/usr/share/mysql" if _installed_mariadb() else _unpacked_mariadb() / "usr/share/mysql")
        names = ("system_tables", "performance_tables", "system_tables_data")
        made = [next(iter(share.glob(f"m*_{name}.sql"))).read_text(encoding="utf-8") for name in names]
        script = self.folder / "make.sql"
        root = "SET @auth_root_socket=NULL, @skip_auth_anonymous=1, @current_hostname='localhost';\n"
        script.write_text(f"{root}CREATE DATABASE mysql;\nUSE mysql;\n{''.join(made)}", encoding="utf-8")
        self._data.mkdir()
        self.run(*self._started(), "--bootstrap", "--innodb-buffer-pool-size=32M", "--log-warnings=0", stdin=script)


class OwnMySQL(_Own):
    """MySQL 9. LOAD DATA LOCAL is off, as it is unless somebody turns it on."""

    options = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--mysqlx=OFF", "--performance-schema=OFF")

    def _program(self) -> list[str]:
        return debian.command(_unpacked_mysql(), "usr/sbin/mysqld")

    def _places(self) -> list[str]:
        return [f"--basedir={_unpacked_mysql()}/usr", *_places_in(_unpacked_mysql()), "--secure-file-priv="]

    def _make(self) -> None:
        self.run(*self._started(), "--initialize-insecure")


def _installed_mariadb() -> str | None:
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _unpacked_mariadb() -> Path:
    return debian.unpacked("mariadb-server-core")


def _unpacked_mysql() -> Path:
    return debian.unpacked("mysql-server-core", "sid")


def _places_in(root: Path) -> list[str]:
    share = f"{root}/usr/share/mysql"
    plugins = f"--plugin-dir={root}/usr/lib/mysql/plugin"
    return [f"--lc-messages-dir={share}", f"--character-sets-dir={share}/charsets", plugins]


@functools.cache
def mariadb() -> MySQL:
    """One for all tests of this process. They make and drop databases on it, also one named `main`."""
    given = os.environ.get("EMATIX_TEST_MARIADB_URL")
    return MySQL(given) if given else OwnMariaDB()


@functools.cache
def mysql() -> MySQL:
    """One for all tests of this process."""
    given = os.environ.get("EMATIX_TEST_MYSQL_URL")
    return MySQL(given) if given else OwnMySQL()


@contextmanager
def own_mariadb(*, durable: bool = False) -> Iterator[OwnMariaDB]:
    """One for this test alone, which may kill it."""
    server = OwnMariaDB(durable=durable)
    try:
        yield server
    finally:
        server.remove()
