"""One bad row diverts itself alone, wherever it fails: good rows land, bad ones follow the policy."""

import json
import random
from collections import Counter
from typing import Any

import pytest

from ematix_flow.errors import FlowError
from ematix_flow.streams.failures import BadRowError, TransformFailed
from ematix_flow.streams.run import run_spec
from ematix_flow.toml import load_toml
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = "id long, t string, d long"
SQL = "SELECT id, CAST(t AS INT) AS n, n + 1 AS m, 100 DIV d AS q FROM source WHERE id % 5 <> 0 OR 10 DIV d > 1"


def test_each_kind_of_failure_is_kept_with_its_bytes_and_told_in_words(orders: Orders) -> None:
    """Also: a lateral alias, a condition that fails, a branch that is never taken, a lambda, an equal row twice."""
    bad = {
        b'{"id": 2, "t": "x", "d": 1}': 'column n: cannot read "x" as int',
        b'{"id": 3, "t": "1", "d": 0}': "column q: (100 div d) fails with d = 0",
        b'{"id": 5, "t": "1", "d": 0}': "WHERE: ((NOT ((id % 5) = 0)) OR ((10 div d) > 1)) fails with d = 0, id = 5",
        b'{"id": 4, "t": "2147483647", "d": 1}': "column m: (n + 1) fails with n = 2147483647",
        b'{"id": "no"}': 'id should be bigint, found "no"',
        b"broken": "not valid JSON: Expecting value: line 1 column 1 (char 0)",
        b"\xff\xfe": "not UTF-8 text (byte 0)",
    }
    orders.arrive("a.jsonl", [{"id": 1, "t": "5", "d": 2}, *bad, {"id": 6}, b"broken", {"id": 10, "t": "1", "d": 9}])

    result = orders.run(schema=SCHEMA, sql=SQL, on_error="dlq", targets=("json_lines",))

    assert orders.in_files() == [{"id": 1, "n": 5, "m": 6, "q": 50}, {"id": 6}]
    letters = orders.dead_letters()
    assert {letter.payload: letter.error for letter in letters} == bad
    assert Counter(letter.payload for letter in letters)[b"broken"] == 2
    assert {letter.error_code for letter in letters} == {"bad-cast", "bad-json", "divide-by-zero", "transform-failed"}
    assert result.dlq_rows == {"transform": 4, "decode": 4}
    assert (result.rows_consumed, result.rows_written) == (11, {"object_store_local": 2})


def test_a_branch_that_is_not_taken_does_not_fail(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "t": "7", "d": 0}, {"id": 2, "t": "a,7", "d": 2}])
    guarded = "CASE WHEN d = 0 THEN 0 ELSE 10 DIV d END AS q, coalesce(d, CAST(t AS INT)) AS c"
    inside = "transform(split(t, ','), x -> try_cast(x AS INT)) AS l, CASE WHEN id > 5 THEN raise_error('no') END AS r"

    orders.run(schema=SCHEMA, sql=f"SELECT id, {guarded}, {inside} FROM source", targets=("json_lines",))

    assert orders.in_files() == [{"id": 1, "q": 0, "c": 0, "l": [7]}, {"id": 2, "q": 5, "c": 2, "l": [None, 7]}]


def test_what_follows_an_object_makes_its_line_bad(orders: Orders) -> None:
    bad = [
        '{"id": 1}{"id": 2}',
        '{"id": 3} {"id": 4}',
        '{"id": 5},',
        '{"id": 6}x',
        '{"id": 7},{"id": 8}',
        '{"id": 9}}',
        "[]",
        '{"id": 9} é',
    ]
    good = ['{"id": 10, "t": "} {"}', '{"t": "{\\"id\\": 1}", "id": 11} ', '{"id": 12, "o": {"l": [{}, {}]}}']
    good += ['{"id": 13, "t": "é}"}', '{"id": 14}  ', "{} "]
    orders.arrive("a.jsonl", [*bad, *good])

    result = orders.run(schema=SCHEMA, on_error="dlq", targets=("json_lines",))

    assert sorted(row.get("id", 0) for row in orders.in_files()) == [0, 10, 11, 12, 13, 14]
    letters = orders.dead_letters()
    assert sorted(letter.payload.decode() for letter in letters) == sorted(bad)
    assert sorted(int(letter.position.rpartition("a.jsonl#")[2]) for letter in letters) == list(range(1, 9))
    assert result.dlq_rows == {"decode": 8}


def test_a_row_that_becomes_several_is_good_or_bad_as_a_whole(orders: Orders) -> None:
    orders.in_new_database("CREATE TABLE orders (id BIGINT, e INTEGER CHECK (e <> 9), v INTEGER)")
    orders.arrive(
        "a.jsonl", [{"id": 1, "l": [1, 2]}, {"id": 2, "l": [2, 3]}, {"id": 3, "l": [9, 4]}, {"id": 4, "l": [1, 1]}]
    )
    sql = "SELECT id, e, CAST(10 DIV (e - 1) AS INT) AS v FROM source LATERAL VIEW explode(l) q AS e"

    result = orders.run(schema="id long, l array<int>", sql=sql, on_error="dlq")

    assert orders.in_database() == [(2, 2, 10), (2, 3, 5)]
    assert sorted((letter.payload, letter.stage) for letter in orders.dead_letters()) == [
        (b'{"id": 1, "l": [1, 2]}', "transform"),
        (b'{"id": 3, "l": [9, 4]}', "write"),
        (b'{"id": 4, "l": [1, 1]}', "transform"),
    ]
    assert (result.rows_consumed, result.rows_written, result.dlq_rows) == (
        4,
        {"orders": 2},
        {"transform": 2, "write": 1},
    )


def test_of_two_refused_rows_of_a_key_none_is_written(orders: Orders) -> None:
    orders.in_new_database("CREATE TABLE orders (id BIGINT PRIMARY KEY, amount DOUBLE CHECK (amount > 0))")
    orders.arrive("a.jsonl", [{"id": 1, "amount": -1}, {"id": 1, "amount": -2}, {"id": 2, "amount": 5}])

    orders.run(on_error="dlq", table='mode = "merge"\nkeys = ["id"]')

    assert orders.in_database() == [(2, 5.0)]
    assert {letter.payload for letter in orders.dead_letters()} == {
        b'{"id": 1, "amount": -1}',
        b'{"id": 1, "amount": -2}',
    }


def test_under_fail_the_row_is_named_and_nothing_is_visible(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "t": "1"}, {"id": 2, "t": "x"}, {"id": 3, "t": "y"}])

    with pytest.raises(BadRowError, match=r'a\.jsonl line 2: column n: cannot read "x" as int \(and 1 more'):
        orders.run(schema=SCHEMA, sql="SELECT id, CAST(t AS INT) AS n FROM source")
    with pytest.raises(TransformFailed, match="CAST_INVALID_INPUT"):
        orders.run(schema=SCHEMA, sql="SELECT sum(CAST(t AS INT)) AS n FROM source", targets=("json_lines",))

    assert orders.in_database() == orders.in_files() == []


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id, sum(CAST(t AS INT)) AS n FROM source GROUP BY id", {1: 12, 3: 3}),
        (
            "WITH numbered AS (SELECT *, row_number() OVER (PARTITION BY id ORDER BY t DESC) AS place FROM source) "
            "SELECT id, CAST(t AS INT) AS n FROM numbered WHERE place = 1",
            {1: 7, 3: 3},
        ),
    ],
)
def test_a_transform_over_the_whole_batch_loses_only_the_rows_it_fails_on(
    orders: Orders, sql: str, expected: dict[int, int]
) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "t": "5"}, {"id": 2, "t": "x"}, {"id": 1, "t": "7"}, {"id": 3, "t": "3"}, "no"])

    result = orders.run(schema=SCHEMA, sql=sql, on_error="dlq", targets=("json_lines",))

    assert {row["id"]: row["n"] for row in orders.in_files()} == expected
    assert {(letter.stage, letter.payload) for letter in orders.dead_letters()} == {
        ("transform", b'{"id": 2, "t": "x"}'),
        ("decode", b"no"),
    }
    assert (result.rows_consumed, result.rows_written) == (5, {"object_store_local": 2})


def test_rows_that_do_not_fit_the_table_are_bad_rows(orders: Orders) -> None:
    orders.in_new_database("CREATE TABLE orders (id INTEGER NOT NULL, t VARCHAR CHECK (t <> 'evil'), d TINYINT)")
    fine = {"id": 1, "t": "a", "d": 1}
    rows = [fine, {"t": "no id"}, {"id": 2, "t": "evil", "d": 1}, {"id": 3, "t": "b", "d": 1000}, {"id": 4}]
    orders.arrive("a.jsonl", rows)
    orders.arrive("b.jsonl", [{"id": 5}])

    result = orders.run(
        schema=SCHEMA,
        on_error="dlq",
        source="max_files_per_batch = 1",
        table='on_drift = "ignore"',
        targets=("duckdb", "json_lines"),
    )

    assert orders.in_database() == [(1, "a", 1), (4, None, None), (5, None, None)]
    assert orders.ids_in_files() == [1, 4, 5]
    letters = {json.loads(letter.payload).get("id"): letter for letter in orders.dead_letters()}
    assert {key: letter.error_code for key, letter in letters.items()} == {
        None: "null-value",
        2: "target-refused",
        3: "bad-value",
    }
    assert {letter.stage for letter in letters.values()} == {"write"}
    assert "CHECK" in letters[2].error
    assert result.dlq_rows == {"write": 3}
    assert result.rows_written == {"orders": 3, "object_store_local": 3}


def test_more_bad_rows_than_are_collected_are_read_again(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.streams.observed._ERRORS_COLLECTED", 3)
    long = "x" * 10_000
    orders.arrive("a.jsonl", [*(f"bad {i}" for i in range(9)), long, {"id": 1}])
    orders.arrive("b.jsonl", [long, {"id": 2}])

    kept = orders.run(on_error="dlq", source="max_files_per_batch = 1", targets=("json_lines",))
    dropped = orders.run(name="dropped", on_error="drop", targets=("json_lines",))

    assert kept.dlq_rows == dropped.dropped_rows == {"decode": 11}
    assert sorted(letter.payload for letter in orders.dead_letters()) == sorted(
        [*(f"bad {i}".encode() for i in range(9)), long.encode(), long.encode()]
    )


def _random_row(dice: random.Random) -> tuple[bytes, str, dict[str, Any] | None]:
    """A line, what it is, and the row that it becomes."""
    i, t, d = (
        dice.randrange(1000),
        dice.choice(["1", "22", "-3", " 4 ", "x", "", "1.5", None]),
        dice.choice([0, 1, 7, None]),
    )
    line = json.dumps({"id": i, "t": t, "d": d}).encode()
    kind = dice.random()
    if kind < 0.1:
        return line[: dice.randrange(1, len(line))], "decode", None
    if kind < 0.15:
        return json.dumps({"id": "text", "t": t}).encode(), "decode", None
    skips = i % 5 == 0
    if skips and d == 0:
        return line, "transform", None
    if skips and (d is None or 10 // d <= 1):
        return line, "skipped", None
    number = None if t is None else int(t) if t.strip() in {"1", "22", "-3", "4"} else "bad"
    if number == "bad" or d == 0:
        return line, "transform", None
    row = {"id": i, "n": number, "m": None if number is None else number + 1, "q": None if d is None else 100 // d}
    return line, "row", {key: value for key, value in row.items() if value is not None}


@pytest.mark.parametrize("policy", ["fail", "drop", "dlq"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_batches_match_a_plain_model(orders: Orders, policy: str, seed: int) -> None:
    dice = random.Random(seed)
    batches = [[_random_row(dice) for _ in range(dice.randrange(1, 120))] for _ in range(3)]
    for number, batch in enumerate(batches):
        orders.arrive(f"{number}.jsonl", (line for line, _, _ in batch))
    declared = {"schema": SCHEMA, "sql": SQL, "on_error": policy, "targets": ("json_lines",)}

    if policy == "fail":
        with pytest.raises(BadRowError):
            orders.run(source="max_files_per_batch = 1", **declared)
        assert orders.in_files() == []
        return
    result = orders.run(source="max_files_per_batch = 1", **declared)

    every = [row for batch in batches for row in batch]
    counts = Counter(kind for _, kind, _ in every)
    bad = {stage: counts[stage] for stage in ("decode", "transform") if counts[stage]}
    assert _sorted(orders.in_files()) == _sorted(row for _, kind, row in every if kind == "row")
    assert result.rows_consumed == len(every)
    assert (result.dlq_rows, result.dropped_rows) == ((bad, {}) if policy == "dlq" else ({}, bad))
    kept = [(letter.payload, letter.stage) for letter in orders.dead_letters()] if policy == "dlq" else []
    assert Counter(kept) == Counter((line, kind) for line, kind, _ in every if kind in bad and policy == "dlq")


def _sorted(rows: Any) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_a_thousand_malformed_lines_are_each_a_row_or_a_dead_letter(orders: Orders) -> None:
    lines = [_malformed(random.Random(number)) for number in range(1000)]
    orders.arrive("a.jsonl", lines)

    result = orders.run(
        schema="id long, t string, at timestamp, n decimal(5,2), l array<int>", on_error="dlq", targets=("json_lines",)
    )

    kept = Counter(letter.payload for letter in orders.dead_letters())
    assert not kept - Counter(lines)
    assert kept.total() + len(orders.in_files()) == result.rows_consumed == len(lines)
    assert kept.total() > 500


def _malformed(dice: random.Random) -> bytes:
    """A line that is broken in one of many ways; some of them happen to be fine."""
    good = json.dumps(
        {"id": dice.randrange(100), "t": "täxt", "at": "2026-01-01T00:00:00Z", "n": 1.25, "l": [1, 2]}
    ).encode()
    at = dice.randrange(1, len(good))
    ways = [
        good[:at],
        good[:at] + bytes([dice.randrange(128, 256)]) + good[at:],
        good[:at] + b"\x00" + good[at:],
        good[:at] + bytes(dice.choices(b'{}[]",:\\', k=3)) + good[at:],
        b'{"id": ' + b"9" * dice.choice([19, 400, 5000]) + b"}",
        b'{"n": 1e' + str(dice.choice([4, 999, 99999999])).encode() + b"}",
        b'{"t": ' + b"[" * dice.choice([10, 2000, 20000]),
        b'{"l": [1, "two", null, {}]}',
        json.dumps({"id": dice.choice([True, 1.5, "1", [], {}, None])}).encode(),
        json.dumps({"at": dice.choice([0, "yesterday", "2026-13-01", "", [], True])}).encode(),
        dice.choice([b"null", b"[]", b"17", b'"text"', b"NaN", b"{}{}", b"\xef\xbb\xbf{}", b"'id'", b"{'id': 1}"]),
        bytes(dice.choices([byte for byte in range(256) if byte not in b"\n\r"], k=dice.randrange(2, 40))) + b"x",
    ]
    return dice.choice(ways)


def test_a_repeated_batch_counts_and_keeps_its_bad_rows_once(orders: Orders) -> None:
    """With a lookup and two tables, rows that failed before are noted, and left out of the repeated batch."""
    orders.arrive("a.jsonl", [{"id": i, "amount": str(i)} for i in range(4)] + [{"id": 4, "amount": "four"}, "broken"])
    orders.in_new_database("CREATE TABLE names AS SELECT 1 AS id, 'one' AS name")
    lookup = f'[transform.lookups.names]\nkind = "duckdb"\npath = "{orders.database}"\ntable = "names"'
    text = orders.toml(
        schema="id long, amount string",
        sql="SELECT s.id, CAST(s.amount AS double) AS amount, n.name FROM source s LEFT JOIN names n ON s.id = n.id",
        on_error="dlq",
        targets=("duckdb", "sqlite"),
        table='mode = "merge"\nkeys = ["id"]',
        more=lookup,
    )
    (spec,) = load_toml(None, text)

    def die(step: str, batch: int) -> None:
        if step == "apply":
            raise KeyError(step)

    with pytest.raises(FlowError):
        run_spec(spec, bounded=True, on_step=die)
    result = run_spec(spec, bounded=True)

    assert (result.rows_consumed, result.dlq_rows) == (6, {"decode": 1, "transform": 1})
    assert result.rows_written == {"orders": 4, "orders_2": 4}
    assert sorted(letter.stage for letter in orders.dead_letters()) == ["decode", "transform"]


def test_what_an_expression_means_several_times_is_tried_as_well(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "t": "5"}, {"id": 2, "t": ""}, {"id": 3, "t": "x"}, {"id": 4, "t": "9"}])
    number = "CAST(nullif(t, '') AS INT)"
    sql = f"SELECT id, {number} AS n FROM source WHERE {number} BETWEEN 1 AND 5 OR id = 2"

    result = orders.run(schema="id long, t string", sql=sql, on_error="dlq", targets=("json_lines",))

    assert orders.in_files() == [{"id": 1, "n": 5}, {"id": 2}]
    assert result.dlq_rows == {"transform": 1}
