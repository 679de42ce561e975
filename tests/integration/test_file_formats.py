"""Every file format as source and as target, with its options."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, orc
from pyarrow import parquet as pq

from ematix_flow.errors import DeclarationError
from ematix_flow.streams.failures import BadRowError, FileUnreadable
from ematix_flow.streams.replay import replay
from ematix_flow.toml import load_toml
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")

AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
TABLE = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["Ann", "", None]),
        "at": pa.array([AT, None, AT], pa.timestamp("us", "UTC")),
    }
)
COLUMNS = "id long, name string, at timestamp"
ROWS = [(1, "Ann", AT), (2, "", None), (3, None, AT)]


def _write(form: str, file: Path) -> None:
    writers = {"parquet": pq.write_table, "orc": orc.write_table, "csv": csv.write_csv}
    writers[form](TABLE, file)


@pytest.mark.parametrize("schema", [COLUMNS, None], ids=["declared", "inferred"])
@pytest.mark.parametrize("form", ["parquet", "orc", "csv"])
def test_source(orders: Orders, form: str, schema: str | None) -> None:
    _write(form, orders.inbox / f"1.{form}")

    result = orders.run(form=form, schema=schema)

    assert (result.rows_consumed, sorted(orders.in_database())) == (3, ROWS)


@pytest.mark.parametrize("schema", [COLUMNS, None], ids=["declared", "inferred"])
def test_times_in_nanoseconds(orders: Orders, schema: str | None) -> None:
    """As pandas writes them; and one before 1970, of which a part of a microsecond is cut off."""
    before = pa.array([-1_999, None, 1_999], pa.timestamp("ns", "UTC"))
    table = TABLE.set_column(2, "at", before)
    pq.write_table(table, orders.inbox / "2026-01-02T03:04:05.parquet")

    orders.run(form="parquet", schema=schema)

    found = [row[2] and row[2].isoformat() for row in sorted(orders.in_database())]
    assert found == ["1969-12-31T23:59:59.999998+00:00", None, "1970-01-01T00:00:00.000001+00:00"]


@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "json_lines"])
def test_what_one_pipeline_writes_another_one_reads(orders: Orders, form: str) -> None:
    _write("parquet", orders.inbox / "1.parquet")
    orders.run(form="parquet", schema=COLUMNS, targets=(form,))
    for file in orders.files():
        file.rename(orders.inbox / f"copy{file.suffix}")
    (orders.inbox / "1.parquet").unlink()

    orders.run(name="back", form=form, schema=COLUMNS)

    assert orders.in_database() == ROWS


def test_csv_columns_are_matched_by_name_and_bad_values_are_set_aside(orders: Orders) -> None:
    (orders.inbox / "1.csv").write_text("id,name\n1,Ann\nx,Bob\n3\n", encoding="utf-8")
    (orders.inbox / "2.csv").write_text('new,name,id\n7,"two\nlines",4\n', encoding="utf-8")

    result = orders.run(form="csv", schema="id long, name string", on_error="dlq")

    assert orders.in_database() == [(1, "Ann"), (4, "two\nlines")]
    assert (result.rows_consumed, result.dlq_rows) == (4, {"decode": 2})
    assert {(letter.payload, letter.error) for letter in orders.dead_letters()} == {
        (b"x,Bob", 'column id: cannot read "x" as bigint'),
        (b"3", "the line does not have as many fields as the header"),
    }


def test_a_file_that_is_not_of_its_format_is_named_and_an_empty_one_helps(orders: Orders) -> None:
    broken = orders.inbox / "1.parquet"
    broken.write_bytes(b"no parquet")

    with pytest.raises(FileUnreadable, match=f"{re.escape(str(broken))} cannot be read"):
        orders.run(form="parquet", schema=COLUMNS)

    broken.write_bytes(b"")
    assert orders.run(form="parquet", schema=COLUMNS).rows_consumed == 0


def test_a_bad_line_of_csv_is_kept_as_it_was_and_read_by_its_own_header_again(orders: Orders) -> None:
    lines = [b'x,"new ""x""",  Ann ', b'y,"two\r\nlines",', b"8,,\xff"]
    good = [b"1,,Eve", b"short"]
    (orders.inbox / "1.csv").write_bytes(b"\r\n".join([b"id,new,name", good[0], lines[0], good[1], b"", *lines[1:]]))
    declared = {"form": "csv", "schema": "name string, id string", "on_error": "dlq"}
    whole = {"schema": "name string, id long"}

    result = orders.run(**declared | whole)

    assert (result.dlq_rows, orders.in_database()) == ({"decode": 4}, [("Eve", 1)])
    kept = {letter.payload: letter.payload_format for letter in orders.dead_letters()}
    assert kept == dict.fromkeys(lines, "csv(id,new,name)") | {b"short": "csv"}

    orders.database.unlink()
    replayed = replay(load_toml(text=orders.toml(**declared))[0])

    assert (replayed.succeeded, replayed.failed_again) == (2, 2)
    assert orders.in_database() == [("  Ann ", "x"), (None, "y")]
    assert {letter.payload for letter in orders.dead_letters()} == {b"short", lines[2]}


def test_what_is_no_text_is_no_text_in_a_replay_either(orders: Orders) -> None:
    bad = [b'{"id": 1, "name": "\xff"}', b'{"id": 2, "name": "a"} and more', b"{'id': 3}"]
    (orders.inbox / "1.jsonl").write_bytes(b"\n".join(bad))
    orders.run(schema="id long, name string", on_error="dlq")

    replayed = replay(load_toml(text=orders.toml(schema="id long, name string", on_error="dlq"))[0])

    assert (replayed.succeeded, replayed.failed_again) == (0, 3)


def test_csv_options_of_the_source(orders: Orders) -> None:
    (orders.inbox / "1.csv").write_text("1;'a;b'\n2;NULL\n", encoding="utf-8")
    options = 'csv_delimiter = ";"\ncsv_header = false\ncsv_quote = "\'"\ncsv_null_value = "NULL"'

    orders.run(form="csv", schema="id long, name string", source=options)

    assert orders.in_database() == [(1, "a;b"), (2, None)]


def test_csv_options_of_the_target(orders: Orders) -> None:
    orders.arrive("1.jsonl", [{"id": 1, "name": 'say "hi"|'}, {"id": 2}])
    options = 'csv_delimiter = "|"\ncsv_header = false\ncsv_null_value = "NULL"'

    orders.run(schema="id long, name string", targets=(f"csv\n{options}",))

    (file,) = orders.files()
    assert file.read_text(encoding="utf-8").splitlines() == ['1|"say ""hi""|"', "2|NULL"]


def test_csv_options_quote_in_another_way_which_is_doubled_and_stands_around_nothing(orders: Orders) -> None:
    orders.arrive("1.jsonl", [{"id": 1, "name": 'it\'s, "so"'}, {"id": 2, "name": ""}, {"id": 3}])

    orders.run(schema="id long, name string", targets=('csv\ncsv_quote = "\'"',))

    (file,) = orders.files()
    assert file.read_text(encoding="utf-8").splitlines() == ["id,name", "1,'it''s, \"so\"'", "2,''", "3,"]


@pytest.mark.parametrize(
    ("compression", "codec"), [("zstd", "ZSTD"), ("uncompressed", "UNCOMPRESSED"), ("gzip", "GZIP")]
)
def test_parquet_compression(orders: Orders, compression: str, codec: str) -> None:
    orders.numbered(range(10))

    orders.run(targets=(f'parquet\nparquet_compression = "{compression}"',))

    (file,) = orders.files()
    assert pq.read_metadata(file).row_group(0).column(0).compression == codec


def test_partition_folders_are_written_and_read_back_as_a_column(orders: Orders) -> None:
    orders.arrive("1.jsonl", [{"id": i, "day": f"2026-01-0{i}"} for i in (1, 2)])
    orders.run(schema="id long, day date", targets=('json_lines\npartition_by = ["day"]\nprefix = "lake"',))

    assert [f.parent.name for f in orders.files()] == ["day=2026-01-01", "day=2026-01-02"]
    assert {(f.parent.parent, f.suffixes[0]) for f in orders.files()} == {(orders.outbox / "lake", ".jsonl")}
    assert [json.loads(f.read_text()) for f in orders.files()] == [{"id": 1}, {"id": 2}]

    orders.inbox = orders.outbox / "lake"
    orders.run(name="back", schema="id long, day string")

    assert orders.in_database() == [(1, "2026-01-01"), (2, "2026-01-02")]


def test_a_query_chooses_files_and_hidden_names_are_in_none(orders: Orders) -> None:
    for name in ("a", "x/b", "x/deep/c", "y/d", "_h/e", ".g/f", "x/_i", "x/.j"):
        (orders.inbox / name).parent.mkdir(parents=True, exist_ok=True)
        orders.arrive(f"{name}.jsonl", [{"id": name[-1]}])
    chosen = {
        "": "abcd",
        "x": "bc",
        "x/b.jsonl": "b",
        "*": "abcd",
        "?": "bcd",
        "*/*.jsonl": "bd",
        "{x,y}/*": "bcd",
        "**/*.jsonl": "abcd",
        "x/**": "bc",
    }

    # Without a schema, what the columns are inferred from has to be what is read.
    alone = orders.toml(schema=None, source='name = "q{}"\nquery = "{}"').replace("[source]", "[[sources]]")
    head, source, rest = re.split(r"(?=\[\[sources\]\])|(?=\[transform\])", alone)
    orders.run_text(head + "".join(source.format(number, query) for number, query in enumerate(chosen)) + rest)

    read = orders.in_database("SELECT source_name, string_agg(id, '' ORDER BY id) FROM orders GROUP BY ALL ORDER BY 1")
    assert read == [(f"q{number}", letters) for number, letters in enumerate(chosen.values())]


def test_folders_of_any_depth_come_only_before_the_names_of_files(orders: Orders) -> None:
    with pytest.raises(DeclarationError, match=re.escape("`**` only before the names of files")):
        orders.run(source='query = "**/x/*.jsonl"')


@pytest.mark.parametrize(("form", "line"), [("json_lines", '{"id": "x"}'), ("csv", "x")])
def test_odd_file_names_are_read_and_named(orders: Orders, form: str, line: str) -> None:
    file = orders.inbox / "a b%20c #1 ü.txt"
    file.write_text("id\n" * (form == "csv") + line + "\n", encoding="utf-8")

    orders.run(form=form, schema="id long", on_error="dlq")

    (letter,) = orders.dead_letters()
    assert (letter.payload, letter.event_ts) == (line.encode(), datetime.fromtimestamp(file.stat().st_mtime, UTC))
    with pytest.raises(BadRowError, match=re.escape("a b%20c #1 ü.txt line")):
        orders.run(name="strict", form=form, schema="id long")
