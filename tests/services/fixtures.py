"""The servers as fixtures: started by the first test that asks, ended with the last one."""

from collections.abc import Iterator

import pytest

from tests.services import postgres as postgres_service
from tests.services import server
from tests.services.mysql import mariadb
from tests.services.postgres import Postgres


@pytest.fixture(scope="session", autouse=True)
def servers_end_with_the_tests() -> Iterator[None]:
    yield
    server.end_all()


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    return postgres_service.postgres()


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """A database of the test's own."""
    return postgres.new_database()


@pytest.fixture
def mariadb_url() -> str:
    """A database of the test's own."""
    return mariadb().new_database()
