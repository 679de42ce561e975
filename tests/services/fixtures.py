"""The servers as fixtures: started by the first test that asks, ended with the last one."""

from collections.abc import Iterator

import pytest

from tests.services import kafka as kafka_service
from tests.services import postgres as postgres_service
from tests.services import schema_registry as registry_service
from tests.services import server
from tests.services.kafka import Kafka
from tests.services.mysql import mariadb
from tests.services.postgres import Postgres
from tests.services.schema_registry import SchemaRegistry


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


@pytest.fixture(scope="session")
def kafka() -> Kafka:
    return kafka_service.kafka()


@pytest.fixture(scope="session")
def registry() -> SchemaRegistry:
    return registry_service.schema_registry()


@pytest.fixture
def mariadb_url() -> str:
    """A database of the test's own."""
    return mariadb().new_database()
