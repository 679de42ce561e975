"""The Java libraries: what a user sees when a file is missing, wrong or already there."""

import hashlib
from pathlib import Path

import pytest

from ematix_flow.errors import UsageError
from ematix_flow.streams.jars import Jar, JarMismatch, JarsMissing, jars, locked, main


def jar(name: str, content: bytes, group: str = "kafka") -> Jar:
    return Jar(group, f"org.example:{name}:1.0", hashlib.sha256(content).hexdigest())


LOCK = (jar("one", b"1"), jar("two", b"2"), jar("three", b"3"), jar("other", b"4", group="delta"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    monkeypatch.setenv("EMATIX_FLOW_JARS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.delenv("EMATIX_FLOW_JARS", raising=False)
    monkeypatch.setenv("EMATIX_FLOW_JAR_CACHE", str(cache))
    return cache


def fill(folder: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        (folder / f"{name}-1.0.jar").write_bytes(content)


def test_a_folder_is_used_by_file_name_and_in_the_order_of_the_lock(folder: Path) -> None:
    fill(folder, three=b"3", one=b"1", two=b"2")
    assert [path.name for path in jars({"kafka"}, lock=LOCK)] == ["one-1.0.jar", "two-1.0.jar", "three-1.0.jar"]


def test_all_files_missing_from_a_folder_are_named_at_once(folder: Path) -> None:
    fill(folder, two=b"2")
    with pytest.raises(JarsMissing) as caught:
        jars(["kafka", "delta"], lock=LOCK)
    assert str(caught.value) == (
        f"3 Java libraries missing in {folder} (EMATIX_FLOW_JARS):\n"
        "  - one-1.0.jar  (org.example:one:1.0)\n"
        "  - three-1.0.jar  (org.example:three:1.0)\n"
        "  - other-1.0.jar  (org.example:other:1.0)\n"
        "What to do: copy them there, or unset EMATIX_FLOW_JARS to have them fetched"
    )


def test_a_wrong_file_in_a_folder_is_refused(folder: Path) -> None:
    fill(folder, one=b"1", two=b"changed", three=b"3")
    with pytest.raises(JarMismatch) as caught:
        jars({"kafka"}, lock=LOCK)
    assert str(caught.value) == (
        f"{folder / 'two-1.0.jar'} is not org.example:two:1.0\n"
        f"  expected sha256 {hashlib.sha256(b'2').hexdigest()}\n"
        f"  found    sha256 {hashlib.sha256(b'changed').hexdigest()}\n"
        "What to do: replace the file with the one of org.example:two:1.0"
    )


def test_a_cached_file_that_was_changed_is_refused_at_the_next_start(cache: Path) -> None:
    fill(cache, one=b"1", two=b"2", three=b"3")
    assert jars({"kafka"}, lock=LOCK) == [cache / f"{name}-1.0.jar" for name in ("one", "two", "three")]
    fill(cache, two=b"x")
    with pytest.raises(JarMismatch, match="delete the file; the next start fetches it again") as caught:
        jars({"kafka"}, lock=LOCK)
    assert caught.value.path == cache / "two-1.0.jar"


def test_an_unknown_group_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="no Java libraries are called kafak") as caught:
        jars({"kafak"}, lock=LOCK)
    assert caught.value.next_step == "use delta, kafka"


def test_the_lock_is_complete_and_its_file_names_are_distinct() -> None:
    lock = locked()
    assert {group: sum(jar.group == group for jar in lock) for group in ("kafka", "delta", "s3")} == {
        "kafka": 4,
        "delta": 5,
        "s3": 36,
    }
    assert all(len(jar.sha256) == 64 and int(jar.sha256, 16) >= 0 for jar in lock)
    assert len({jar.file_name for jar in lock}) == len(lock)


def test_the_command_fails_with_a_message_not_a_traceback(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delta"]) == 1
    assert capsys.readouterr().err.startswith(f"ematix-flow: 5 Java libraries missing in {folder}")


def test_the_command_lists_what_a_machine_without_network_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "kafka-clients-3.9.2.jar" in capsys.readouterr().out
