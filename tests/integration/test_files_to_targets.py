"""A declared pipeline over JSON lines: rows land once, bad rows are set aside, runs go on where they stopped."""

import os
import shutil
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from ematix_flow import run_pipeline
from ematix_flow.errors import FlowError
from ematix_flow.streams.failures import BadRowError
from ematix_flow.streams.sources.base import NoColumns, SourceNotFound
from ematix_flow.streams.transform import BadSql
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")


def test_rows_land_in_every_target_and_a_second_run_writes_nothing(orders: Orders) -> None:
    orders.numbered(range(3), range(3, 5))

    first = orders.run(targets=("duckdb", "json_lines"))
    second = orders.run(targets=("duckdb", "json_lines"))

    assert (first.status, first.batches, first.rows_consumed) == ("success", 1, 5)
    assert first.rows_written == {"orders": 5, "object_store_local": 5}
    assert (second.batches, second.rows_consumed, sum(second.rows_written.values())) == (0, 0, 0)
    assert orders.ids_in_database() == orders.ids_in_files() == [0, 1, 2, 3, 4]


def test_files_that_arrive_later_in_any_name_order_are_read_once(orders: Orders) -> None:
    orders.arrive("m.jsonl", [{"id": 1}])
    orders.run()
    old = orders.arrive("a.jsonl", [{"id": 2}])
    os.utime(old, (1_000_000_000, 1_000_000_000))
    orders.arrive("z.jsonl", [{"id": 3}])
    orders.arrive("_hidden.jsonl", [{"id": 99}])
    orders.run()

    assert orders.ids_in_database() == [1, 2, 3]


def test_batches_take_so_many_files_oldest_first(orders: Orders) -> None:
    orders.numbered(range(2), range(2, 4), range(4, 6))

    assert orders.run(source="max_files_per_batch = 2").batches == 2
    assert orders.ids_in_database() == list(range(6))


def test_batches_take_about_so_many_rows(orders: Orders) -> None:
    orders.numbered(*(range(100 * i, 100 * (i + 1)) for i in range(4)))

    assert orders.run(source="max_rows_per_batch = 200").batches in {2, 3}
    assert len(orders.ids_in_database()) == 400


def test_batches_take_about_so_many_bytes(orders: Orders) -> None:
    orders.numbered(*(range(100 * i, 100 * (i + 1)) for i in range(4)))
    one_file = (orders.inbox / "3.jsonl").stat().st_size
    limit = f"batch_bytes = {2 * one_file}\n"

    assert run_pipeline(config_str=limit + orders.toml(), bounded=True).batches == 2
    files = limit + orders.toml(name="by_files", source="max_files_per_batch = 1")
    assert run_pipeline(config_str=files, bounded=True).batches == 4


def test_the_transform_sees_the_stream_as_source(orders: Orders) -> None:
    orders.numbered(range(6))

    orders.run(sql="SELECT id, amount * 10 AS cents FROM source WHERE id % 2 = 0")

    assert orders.in_database() == [(0, 0.0), (2, 10.0), (4, 20.0)]


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        ("spark", "SELECT id, CAST(amount AS INT) AS whole FROM source WHERE id = 3"),
        ("duckdb", "SELECT id, amount::INT AS whole FROM source WHERE id = 3"),
        ("datafusion", "SELECT id, amount::INT AS whole FROM source WHERE id = 3"),
        ("datafusion", "SELECT id, id / 2 AS whole FROM source WHERE id / 2 = 1 AND id / 2.0 > 1"),
    ],
)
def test_dialects_are_translated(orders: Orders, dialect: str, sql: str) -> None:
    orders.numbered(range(5))

    orders.run(sql=f'{sql}"""\ndialect = """{dialect}')

    assert orders.in_database() == [(3, 1)]


def test_sql_over_a_whole_batch_is_applied_to_each_batch(orders: Orders) -> None:
    orders.numbered(range(4), range(4, 6))

    orders.run(source="max_files_per_batch = 1", sql="SELECT count(*) AS n, max(id) AS newest FROM source")

    assert orders.in_database() == [(2, 5), (4, 3)]


def test_event_time_is_at_hand_by_name_but_not_part_of_star(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "at": "2026-01-02T03:04:05.000006Z"}])
    declared = {"schema": "id long, at timestamp", "source": 'event_time_column = "at"', "targets": ("json_lines",)}

    orders.run(sql="SELECT *, _event_ts AS happened FROM source", **declared)

    at = "2026-01-02T03:04:05.000006Z"
    assert orders.in_files() == [{"id": 1, "at": at, "happened": at}]


def test_the_declared_event_time_takes_the_place_of_one_in_the_payload(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "at": "2026-01-02T03:04:05Z", "_event_ts": "1999-12-31T00:00:00Z"}])
    declared = {"schema": "id long, at timestamp, _event_ts timestamp", "targets": ("json_lines",)}

    orders.run(source='event_time_column = "at"', sql="SELECT id, _event_ts FROM source", **declared)

    assert orders.in_files() == [{"id": 1, "_event_ts": "2026-01-02T03:04:05.000000Z"}]


@pytest.mark.parametrize("on_error", ["fail", "drop", "dlq"])
@pytest.mark.parametrize(
    "sql", [None, "SELECT * FROM source", "SELECT s.* FROM source s", "SELECT DISTINCT * FROM source"]
)
def test_star_means_the_columns_of_the_payload(orders: Orders, sql: str | None, on_error: str) -> None:
    orders.arrive(
        "a.jsonl", [{"id": 1, "_event_ts": "2026-01-02T03:04:05Z"}, *([] if on_error == "fail" else ["broken"])]
    )
    declared = {"sql": sql, "on_error": on_error, "targets": ("json_lines",)}

    orders.run(name="without", schema="id long", **declared)
    orders.run(name="with", schema="id long, _event_ts timestamp", **declared)

    assert orders.in_files() == [{"id": 1, "_event_ts": "2026-01-02T03:04:05.000000Z"}, {"id": 1}]


def test_columns_are_inferred_once_and_unknown_ones_do_not_stop_the_pipeline(orders: Orders) -> None:
    orders.arrive("1.jsonl", [{"id": 1, "city": "Oslo"}])
    orders.run(schema=None, targets=("json_lines",))
    orders.arrive("2.jsonl", [{"id": 2, "city": "Rome", "surprise": {"deep": [1]}}])
    orders.run(schema=None, targets=("json_lines",))

    assert sorted(orders.in_files(), key=lambda row: row["id"]) == [
        {"id": 1, "city": "Oslo"},
        {"id": 2, "city": "Rome"},
    ]


def test_input_without_any_column_is_refused_not_skipped(orders: Orders) -> None:
    orders.arrive("1.jsonl", ["broken", "also broken"])

    with pytest.raises(NoColumns, match="not one of 1 files"):
        orders.run(schema=None, on_error="drop")


@pytest.mark.parametrize("name", ["_orders", "../or ders", ".", "Bestellungen/ö"])
def test_any_name_is_a_good_name(orders: Orders, name: str) -> None:
    orders.numbered(range(2))

    orders.run(name=name, targets=("json_lines",))

    assert orders.ids_in_files() == [0, 1]
    assert {path.name for path in orders.folder.iterdir()} == {"inbox", "outbox", ".ematix-flow"}


def test_an_empty_folder_is_a_run_with_nothing_to_do(orders: Orders) -> None:
    result = orders.run(schema=None)

    assert (result.status, result.batches) == ("success", 0)


BAD = [
    "not json",
    '{"id": 1, "amount": "lots"}',
    "[1, 2]",
    '{"id": 99999999999999999999}',
    b'{"id": 5, "x": "\xff\xfe',
    "null",
]


def test_bad_rows_become_dead_letters_with_their_bytes(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "amount": 1.0}, *BAD, {"id": 2, "amount": None}, ""])

    result = orders.run(on_error="dlq")

    assert (result.rows_consumed, result.rows_written, result.dlq_rows) == (8, {"orders": 2}, {"decode": 6})
    assert orders.ids_in_database() == [1, 2]
    letters = orders.dead_letters()
    assert {letter.payload for letter in letters} == {line.encode() if isinstance(line, str) else line for line in BAD}
    reasons = {letter.payload: letter.error for letter in letters}
    assert reasons[b'{"id": 1, "amount": "lots"}'] == 'amount should be double, found "lots"'
    assert reasons[b"[1, 2]"] == "expected a JSON object, found an array"
    assert {(letter.stage, letter.status, letter.payload_format) for letter in letters} == {
        ("decode", "pending", "json_lines")
    }


@pytest.mark.parametrize(
    "sql", ["SELECT id FROM source", "SELECT 1 AS one FROM source", "SELECT count(*) AS n FROM source"]
)
def test_a_row_is_bad_also_when_nobody_asks_for_its_bad_column(orders: Orders, sql: str) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "amount": "lots"}, {"id": 2, "amount": 1.0}])

    assert orders.run(on_error="drop", sql=sql).dropped_rows == {"decode": 1}


def test_bad_rows_are_kept_beside_a_transform_that_filters(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1, "amount": 1.0}, {"id": 2, "amount": 0.0}, "broken"])

    result = orders.run(on_error="dlq", sql="SELECT id, 1 / amount AS inverse FROM source WHERE id = 1")

    assert (orders.in_database(), result.dlq_rows) == ([(1, 1.0)], {"decode": 1})


def test_bad_rows_can_be_dropped_and_counted(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1}, "broken", "also broken"])

    result = orders.run(on_error="drop")

    assert (result.rows_written, result.dropped_rows, result.dlq_rows) == ({"orders": 1}, {"decode": 2}, {})
    assert orders.dead_letters() == []


def test_a_bad_row_stops_the_pipeline_and_nothing_of_its_batch_is_visible(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1}, "broken", {"id": 2}])

    with pytest.raises(BadRowError, match=r"a\.jsonl line 2: not valid JSON") as caught:
        orders.run(targets=("duckdb", "json_lines"))

    assert (caught.value.code, caught.value.stage) == ("bad-row", "decode")
    assert orders.ids_in_database() == orders.ids_in_files() == []


def test_a_corrected_file_lets_the_pipeline_go_on(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1}, "broken"])
    with pytest.raises(BadRowError):
        orders.run()

    assert orders.run(on_error="drop").rows_written == {"orders": 1}
    assert orders.ids_in_database() == [1]


def test_a_wrong_column_is_refused_before_anything_runs(orders: Orders) -> None:
    orders.numbered(range(2))

    with pytest.raises(BadSql, match="nonsense"):
        orders.run(sql="SELECT nonsense FROM source")
    with pytest.raises(BadSql, match="must be one SELECT"):
        orders.run(sql='DELETE FROM source"""\ndialect = """duckdb')
    with pytest.raises(BadSql, match="must be one SELECT, found SET"):
        orders.run(sql="SET spark.sql.ansi.enabled = false")


def test_a_missing_folder_is_named(orders: Orders) -> None:
    with pytest.raises(SourceNotFound, match="nowhere does not exist"):
        orders.run(source='query = "nowhere"')


def test_a_reset_pipeline_applies_again_while_a_continued_one_does_not(orders: Orders) -> None:
    orders.numbered(range(2))
    orders.run(targets=("duckdb", "json_lines"))
    shutil.rmtree(orders.folder / ".ematix-flow")
    orders.run(targets=("duckdb", "json_lines"))

    assert orders.ids_in_database() == orders.ids_in_files() == [0, 0, 1, 1]


def test_one_target_and_nothing_set_aside_is_computed_once_and_kept_nowhere(
    orders: Orders, spark: SparkSession
) -> None:
    orders.numbered(range(5))
    context = spark.sparkContext._jsc.sc()
    jobs_before, kept_before = context.dagScheduler().numTotalJobs(), context.getPersistentRDDs().size()

    orders.run(on_error="dlq", targets=("json_lines",))

    assert context.dagScheduler().numTotalJobs() - jobs_before == 1
    assert context.getPersistentRDDs().size() == kept_before


def test_what_is_not_built_is_said_by_name(orders: Orders) -> None:
    with pytest.raises(FlowError, match=r"\[transform\] sql with \[transform.cdc\]") as caught:
        orders.run(sql="SELECT * FROM source", table='mode = "merge"\nprimary_key = ["id"]', more="[transform.cdc]\n")

    assert caught.value.code == "not-built"


def test_a_callers_session_keeps_its_settings(orders: Orders, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    orders.numbered(range(2))

    run_pipeline(config_str=orders.toml(), bounded=True, spark=spark)

    assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    assert orders.ids_in_database() == [0, 1]


def test_event_time_of_a_dead_letter_is_the_files_time_when_none_is_declared(orders: Orders) -> None:
    file = orders.arrive("a.jsonl", ["broken"])

    orders.run(on_error="dlq")

    (letter,) = orders.dead_letters()
    assert letter.event_ts == datetime.fromtimestamp(file.stat().st_mtime, UTC)
    assert letter.position.endswith("a.jsonl#1")


def test_event_time_of_a_dead_letter_is_the_declared_one_where_it_can_be_read(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": "x", "at": "2026-01-02T03:04:05.000006Z"}])

    orders.run(on_error="dlq", schema="id long, at timestamp", source='event_time_column = "at"')

    (letter,) = orders.dead_letters()
    assert letter.event_ts == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def test_state_can_live_in_a_folder_of_its_own(orders: Orders) -> None:
    orders.numbered(range(2))
    place = f'[state_store]\nkind = "local"\npath = "{orders.folder / "state"}"'

    assert orders.run(more=place).batches == 1
    assert orders.run(more=place).batches == 0
    assert (orders.folder / "state" / "orders" / "checkpoint").is_dir()
