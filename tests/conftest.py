"""Keeps every test away from the state and the settings of whoever runs it, and shares one Spark among all of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ematix_flow.specs import SparkSettings
from ematix_flow.streams.session import session_for
from tests.class_archive import use_archive
from tests.orders import Orders

# Tests start many Java processes that live for seconds; what the second compiler gains, it never earns back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1")

pytest_plugins = ["tests.services.fixtures"]


def pytest_configure(config: pytest.Config) -> None:
    """Workers inherit the environment. Few tests, run without workers, would not earn back the making."""
    if not hasattr(config, "workerinput"):
        use_archive(config.cache.mkdir("java"), make=bool(config.getoption("numprocesses", default=None)))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / ".ematix-flow"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMATIX_FLOW_HOME", str(tmp_path_factory.mktemp("spark")))
        session = session_for(SparkSettings(master="local[2]"), jar_groups={"delta", "kafka"})
    yield session
    session.stop()


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)
