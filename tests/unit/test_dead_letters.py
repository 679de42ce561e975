"""Dead letters on the disk: what is put stays once, is filtered, leased, settled, and survives being done twice."""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.state.dead_letters import DeadLetter, DeadLetters, Settled, Which

START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_ATTEMPTS = 3


def letter(number: int, **facts: Any) -> DeadLetter:
    given = {
        "pipeline": "orders", "stage": "decode", "error_code": "bad-json", "error": "no JSON", "source": "source",
        "position": f"file:///in/a.jsonl#0+{number}", "event_ts": None, "payload_format": "json_lines",
        "payload": f"{{{number}".encode(), "failed_at": START + timedelta(minutes=number),
    }  # fmt: skip
    return DeadLetter(**(given | facts))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dead_letters.db"


@pytest.fixture
def letters(path: Path) -> Iterator[DeadLetters]:
    store = DeadLetters(path, "first generation")
    yield store
    store.close()


def known(letters: DeadLetters) -> list[tuple[int, str, int]]:
    """Number, status and attempt of each."""
    return [(int(one.position.rpartition("+")[2]), one.status, one.attempt) for one in letters.all()]


def fail(letters: DeadLetters, replay: str, *numbers: int, error: str = "still no JSON") -> Settled:
    """Settle a replay in which these failed."""
    return letters.settle(replay, [letter(n, error=error, position=letter(n).id) for n in numbers], MAX_ATTEMPTS)


def test_what_is_put_comes_back_as_it_was(letters: DeadLetters) -> None:
    first = letter(1, event_ts=START + timedelta(microseconds=1), payload=b"\x00\xff\r\x1b[2J")
    second = letter(2, payload=None)
    assert letters.put([second, first]) == 2
    assert letters.all() == [first, second]
    assert letters.put([]) == 0


def test_a_repeated_batch_changes_neither_status_nor_attempts_but_tells_its_reason_anew(letters: DeadLetters) -> None:
    letters.put(map(letter, range(4)))
    letters.lease(Which(ids=(letter(1).id, letter(2).id)), "r")
    fail(letters, "r", 1)
    letters.lease(Which(ids=(letter(3).id,)), "s")
    letters.park([letter(0).id])
    before = known(letters)
    assert before == [(0, "parked", 1), (1, "pending", 2), (3, "leased", 2)]
    letters.put(letter(n, error="in other words") for n in range(4))
    assert known(letters) == before, "and the one that was replayed well does not come back"
    assert {one.error for one in letters.all()} == {"in other words"}


def test_a_pipeline_that_was_reset_may_fail_on_the_same_row_again(letters: DeadLetters, path: Path) -> None:
    letters.put([letter(1)])
    letters.lease(Which(), "r")
    letters.settle("r", [], MAX_ATTEMPTS)
    reset = DeadLetters(path, "second generation")
    reset.put([letter(1)])
    assert known(reset) == [(1, "pending", 1)]
    reset.close()


def test_letters_are_found_by_status_stage_time_and_id_oldest_first(letters: DeadLetters) -> None:
    letters.put(letter(n, stage="write" if n % 2 else "decode", error_code=f"code-{n % 2}") for n in range(6))
    letters.park([letter(4).id, letter(5).id])

    def numbers(**which: Any) -> list[int]:
        assert letters.count(Which(**which)) == len(list(letters.find(Which(**which))))
        return [int(one.position.rpartition("+")[2]) for one in letters.find(Which(**which))]

    assert numbers(statuses=("parked",)) == [4, 5]
    assert numbers(stage="write", limit=2) == [1, 3]
    assert numbers(since=START + timedelta(minutes=2), before=START + timedelta(minutes=4)) == [2, 3]
    assert numbers(ids=(letter(5).id, letter(0).id, "unknown")) == [0, 5]
    assert numbers(ids=()) == []
    assert letters.starting_with(letter(3).id[:10]) == [letter(3, stage="write", error_code="code-1")]
    assert letters.starting_with("%") == []
    counts = {(one.stage, one.error_code, one.status): (one.letters, one.oldest) for one in letters.counts()}
    assert counts[("decode", "code-0", "pending")] == (2, START)
    assert counts[("write", "code-1", "parked")] == (1, START + timedelta(minutes=5))


def test_a_replay_deletes_what_succeeded_and_parks_what_failed_too_often(letters: DeadLetters) -> None:
    letters.put(map(letter, range(3)))
    assert letters.lease(Which(), "r") == 3
    assert [one.position for one in letters.leased("r")] == [letter(n).position for n in range(3)]
    assert fail(letters, "r", 1, 2, error="still not") == Settled(succeeded=1, failed_again=2)
    assert known(letters) == [(1, "pending", 2), (2, "pending", 2)]
    assert {(one.error, one.payload, one.position) for one in letters.all()} >= {
        ("still not", b"{1", letter(1).position)
    }
    letters.lease(Which(limit=1), "s")
    assert fail(letters, "s", 1) == Settled(failed_again=1, parked=1)
    assert known(letters) == [(1, "parked", 3), (2, "pending", 2)]


def test_one_replay_is_always_possible(letters: DeadLetters) -> None:
    letters.put([letter(1)])
    assert known(letters) == [(1, "pending", 1)]
    letters.lease(Which(), "r")
    letters.settle("r", [letter(1, position=letter(1).id)], max_attempts=1)
    assert known(letters) == [(1, "parked", 2)]


def test_a_replay_that_is_settled_twice_ends_the_same(letters: DeadLetters) -> None:
    letters.put(map(letter, range(3)))
    letters.lease(Which(), "r")
    fail(letters, "r", 1)
    assert fail(letters, "r", 1) == Settled()
    letters.lease(Which(), "s")
    assert fail(letters, "r") == Settled(), "an old replay does not touch the letters of a new one"
    assert known(letters) == [(1, "leased", 3)]
    assert letters.open_replay() == "s"


def test_a_row_of_a_replay_without_an_origin_is_a_new_letter(letters: DeadLetters) -> None:
    letters.put([letter(1)])
    letters.lease(Which(), "r")
    made = letter(0, position="+7", payload=None, error="sum is NULL")
    for _ in range(2):
        letters.settle("r", [made], MAX_ATTEMPTS)
        assert letters.all() == [made]


def test_letters_in_the_hands_of_a_replay_are_left_alone(letters: DeadLetters) -> None:
    letters.put(map(letter, range(2)))
    letters.lease(Which(limit=1), "r")
    assert letters.lease(Which(), "s") == 1
    assert letters.park([letter(0).id]) == 0
    assert letters.purge(Which()) == 0
    fail(letters, "r", 0)
    assert letters.purge(Which()) == 1
    assert known(letters) == [(1, "leased", 2)]


def test_two_processes_write_at_once(letters: DeadLetters, path: Path) -> None:
    other = DeadLetters(path)
    letters.put(map(letter, range(100)))
    assert other.park([letter(0).id]) == 1
    # A reader in the middle of its work does not keep the daemon from writing.
    reading = other.find()
    next(reading)
    letters.put(map(letter, range(100, 200)))
    assert len(list(reading)) == 99
    assert other.count() == 200
    other.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
