"""What Java is started with."""

from pathlib import Path

import pytest

from ematix_flow.streams.session import _for_java

LOG = Path("logs/spark.log")


def options(**conf: str) -> list[str]:
    given = _for_java(LOG, {key.replace("_", "."): value for key, value in conf.items()})
    return given["spark.driver.defaultJavaOptions"].split()


def test_there_is_one_collector_and_a_log() -> None:
    assert [one for one in options() if one.endswith("GC")] == ["-XX:+UseParallelGC"]
    assert f"-Dflow.log={LOG}" in options()


def test_a_collector_that_the_user_names_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-XX:+UseParallelGC" in options(spark_driver_extraJavaOptions="-Xss4m -XX:+UseStringDeduplication")
    assert "-XX:+UseParallelGC" not in options(spark_driver_extraJavaOptions="-Xss4m -XX:+UseZGC")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC")
    assert "-XX:+UseParallelGC" not in options()
