"""Dead letters, wherever they are kept: what is put stays once, is filtered, leased, settled, and survives being done
twice."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ematix_flow.state import dead_letters, delta_letters
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters, Settled, Which
from ematix_flow.state.delta_letters import DeltaDeadLetters
from ematix_flow.state.postgres_letters import PostgresDeadLetters
from ematix_flow.state.postgres_session import PostgresSession
from ematix_flow.state.vault import StateStoreUnavailable

START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_ATTEMPTS = 3


def letter(number: int, **facts: Any) -> DeadLetter:
    given = {
        "pipeline": "orders", "stage": "decode", "error_code": "bad-json", "error": "no JSON", "source": "source",
        "position": f"file:///in/a.jsonl#0+{number}", "event_ts": None, "payload_format": "json_lines",
        "payload": f"{{{number}".encode(), "failed_at": START + timedelta(minutes=number),
    }  # fmt: skip
    return DeadLetter(**(given | facts))


Open = Callable[..., DeadLetters]


def in_a_file(request: pytest.FixtureRequest, folder: Path) -> Open:
    return lambda pipeline, generation: DeadLetters(folder / f"{pipeline}.db", generation)


def in_postgres(request: pytest.FixtureRequest, folder: Path) -> Open:
    url = request.getfixturevalue("postgres_url")
    return lambda pipeline, generation: PostgresDeadLetters(
        pipeline, PostgresSession(url, "flow", "letters"), generation
    )


def in_delta(request: pytest.FixtureRequest, folder: Path) -> Open:
    return lambda pipeline, generation: DeltaDeadLetters(str(folder / "dead_letters"), pipeline, generation)


@pytest.fixture(params=[in_a_file, in_postgres, in_delta])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same letters as often as wanted."""
    place, known = request.param(request, tmp_path), []

    def opened(pipeline: str = "orders", generation: str = "first generation") -> DeadLetters:
        known.append(place(pipeline, generation))
        return known[-1]

    yield opened
    for letters in known:
        letters.close()


@pytest.fixture
def letters(opened: Open) -> DeadLetters:
    return opened()


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


def test_a_pipeline_that_was_reset_may_fail_on_the_same_row_again(letters: DeadLetters, opened: Open) -> None:
    letters.put([letter(1)])
    letters.lease(Which(), "r")
    letters.settle("r", [], MAX_ATTEMPTS)
    reset = opened(generation="second generation")
    assert reset.put([letter(1)]) == 1
    assert known(reset) == [(1, "pending", 1)]


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


def test_pipelines_do_not_see_the_letters_of_each_other(opened: Open) -> None:
    orders, others = opened(), opened("o'ther")
    assert others.all() == others.counts() == [], "looking needs nothing to be there"
    assert (others.count(), others.open_replay(), others.purge(Which()), others.park(["x"])) == (0, None, 0, 0)
    orders.put(map(letter, range(2)))
    others.put(letter(n, pipeline="o'ther") for n in range(3))
    orders.lease(Which(), "r")
    assert (others.open_replay(), others.lease(Which(limit=1), "s")) == (None, 1)
    orders.settle("r", [], MAX_ATTEMPTS)
    others.purge(Which())
    assert (known(orders), known(others)) == ([], [(0, "leased", 2)])


def test_two_processes_write_at_once(letters: DeadLetters, opened: Open) -> None:
    other = opened()
    letters.put(map(letter, range(100)))
    assert other.park([letter(0).id]) == 1
    # A reader in the middle of its work does not keep the daemon from writing.
    reading = other.find()
    next(reading)
    letters.put(map(letter, range(100, 200)))
    assert len(list(reading)) == 99
    assert other.count() == 200

    def replay(number: int) -> int:
        process = opened()
        leased = process.lease(Which(ids=tuple(letter(n).id for n in range(number, 200, 2))), f"replay {number}")
        process.put(letter(n) for n in range(1000 + number, 1200, 2))
        return leased + process.settle(f"replay {number}", [], MAX_ATTEMPTS).succeeded

    with ThreadPoolExecutor(2) as processes:
        assert sum(processes.map(replay, range(2))) == 400
    assert [number for number, *_ in known(letters)] == list(range(1000, 1200))


def test_many_letters_are_read_and_written_in_portions(letters: DeadLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_AT_ONCE", 3)
    assert letters.put(letter(n) for n in range(8)) == 8
    assert letters.lease(Which(), "r") == 8
    assert [one.payload for one in letters.leased("r")] == [f"{{{n}".encode() for n in range(8)]
    assert fail(letters, "r", *range(1, 8)) == Settled(succeeded=1, failed_again=7)
    assert [number for number, *_ in known(letters)] == list(range(1, 8))


def test_a_message_may_quote_anything_and_time_goes_far_back(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    letters.put([letter(1, error="found \x00 and \u00e4\U0001f600", event_ts=datetime(1, 1, 1, tzinfo=UTC))])
    (one,) = letters.all()
    assert one.error.replace("\N{SYMBOL FOR NULL}", "\x00") == "found \x00 and \u00e4\U0001f600"
    assert one.event_ts == datetime(1, 1, 1, tzinfo=UTC)


def test_a_file_of_letters_waits_for_no_reader(tmp_path: Path) -> None:
    with closing(DeadLetters(tmp_path / "letters.db")), closing(sqlite3.connect(tmp_path / "letters.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_looking_makes_no_delta_table_and_many_puts_leave_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dead_letters"
    letters = DeltaDeadLetters(str(folder), "orders")
    assert (letters.all(), folder.exists()) == ([], False)
    monkeypatch.setattr(delta_letters, "_MANY_FILES", 3)
    for number in range(8):
        letters.put([letter(number)])
    assert letters.count() == 8
    assert len(DeltaTable(str(folder)).file_uris()) <= 3
    assert letters.put([]) == 0
    assert DeltaTable(str(folder)).version() < 12, "a batch without letters commits nothing"
    folder.rename(tmp_path / "moved")
    folder.write_text("no table")
    with pytest.raises(StateStoreUnavailable, match=f"Delta table {folder} cannot be used"):
        letters.put([letter(1)])
