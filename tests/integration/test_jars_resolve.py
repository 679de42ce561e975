"""A Java library is really fetched through Spark's Ivy, once."""

import subprocess
from pathlib import Path

import pytest

from ematix_flow.streams.jars import Jar, JarMismatch, JarsNotFetched, jars, locked

POOL = [jar for jar in locked() if "commons-pool2" in jar.coordinate]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EMATIX_FLOW_JARS", raising=False)
    monkeypatch.setenv("EMATIX_FLOW_JAR_CACHE", str(tmp_path / "jars"))
    return tmp_path / "jars"


def test_what_can_be_had_is_fetched_once_and_what_cannot_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = Jar("kafka", "org.apache.commons:commons-pool2:0.0.0", "0" * 64)
    with pytest.raises(JarsNotFetched) as caught:
        jars({"kafka"}, lock=[*POOL, absent])
    assert caught.value.jar == absent
    assert caught.value.found == (
        "org.apache.commons:commons-pool2:0.0.0 could not be fetched: "
        "[unresolved dependency: org.apache.commons#commons-pool2;0.0.0: not found]"
    )
    assert capsys.readouterr().err == (
        "ematix-flow: fetching 2 Java libraries (first use only) ...\nematix-flow:   1/2 commons-pool2 2.13.1\n"
    )
    assert sorted(path.name for path in cache.iterdir()) == ["commons-pool2-2.13.1.jar", "fetch.log"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started for a library that is in the cache")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert jars({"kafka"}, lock=POOL) == [cache / "commons-pool2-2.13.1.jar"]
    assert capsys.readouterr().err == ""


def test_what_arrives_with_another_hash_never_reaches_the_cache(cache: Path) -> None:
    wrong = [Jar("kafka", POOL[0].coordinate, "0" * 64)]
    with pytest.raises(JarMismatch, match="find out why before you use it"):
        jars({"kafka"}, lock=wrong)
    assert list(cache.glob("*.jar")) == []
