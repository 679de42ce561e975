"""Runs every case against every target, and holds the targets to what they declare."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.contract.backends import BACKENDS, Backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    case = metafunc.function.__name__.removeprefix("test_")
    parameters = []
    for backend in BACKENDS:
        reason = backend.never.get(case) or backend.not_yet.get(case)
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        if case in backend.slow:
            marks.append(pytest.mark.slow)
        parameters.append(pytest.param(backend, id=backend.name, marks=marks))
    metafunc.parametrize("backend", parameters, indirect=True)


@pytest.fixture(scope="module")
def for_a_few_rows(spark: SparkSession) -> Iterator[SparkSession]:
    """Compiling a plan costs more than running it over a handful of rows."""
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.shuffle.partitions": "1"}
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path, for_a_few_rows: SparkSession) -> Backend:
    made: Backend = request.param(tmp_path, for_a_few_rows)
    return made
