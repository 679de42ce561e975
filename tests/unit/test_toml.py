"""Loading TOML: one or several pipelines, inline and named connections, and the line of every key."""

import textwrap
import warnings
from pathlib import Path

import pytest

from ematix_flow import DeltaS3Connection, DuckDBConnection, KafkaConnection, SnowflakeConnection
from ematix_flow.errors import DeclarationError, UsageError
from ematix_flow.toml import load_toml
from ematix_flow.toml_lines import key_lines

PIPELINE = """\
pipeline_name = "orders"

[source]
kind = "kafka"
bootstrap_servers = "broker:9092"
query = "orders"
name = "incoming"

[target]
kind = "duckdb"
path = "orders.duckdb"

[target.table]
schema = "main"
name = "orders"
primary_key = ["id"]
"""


def test_fields_go_to_the_connection_or_to_the_source() -> None:
    (spec,) = load_toml(text=PIPELINE)
    assert spec.sources[0].connection == KafkaConnection(bootstrap_servers="broker:9092")
    assert (spec.sources[0].query, spec.sources[0].name) == ("orders", "incoming")
    assert spec.targets[0].connection == DuckDBConnection(path="orders.duckdb")
    assert spec.targets[0].merge_keys == ("id",)


def test_a_key_that_both_have_belongs_to_the_one_that_uses_it() -> None:
    delta = 'kind = "delta_s3"\nbucket = "lake"\nprefix = "raw"\n'
    snowflake = 'kind = "snowflake"\naccount = "a"\nuser = "u"\npassword = "${PW}"\nschema = "s"\ntable = "t"\n'
    (spec,) = load_toml(
        text=f'pipeline_name = "p"\n[source]\nconnection = "in"\n[[targets]]\n{delta}[[targets]]\n{snowflake}'
    )
    lake, warehouse = (target.connection for target in spec.targets)
    assert isinstance(lake, DeltaS3Connection)
    assert lake.prefix == "raw"
    assert isinstance(warehouse, SnowflakeConnection)
    assert warehouse.schema == "s"


def test_the_origin_is_the_file_and_line_and_no_part_of_the_spec(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text("# orders\n" + PIPELINE, encoding="utf-8")
    (from_file,), (from_text,) = load_toml(file), load_toml(text=PIPELINE)
    assert from_file.origin == f"{file}:2"
    assert from_text.origin == "<text>:1"
    assert from_file == from_text
    assert hash(from_file) == hash(from_text)


def test_several_pipelines_in_one_file() -> None:
    one = textwrap.dedent("""
        [[pipelines]]
        pipeline_name = "{name}"
        [pipelines.source]
        connection = "in"
        [pipelines.target]
        connection = "out"
        [pipelines.transform.lookups.names]
        kind = "sqlite"
        path = "names.db"
        table = "names"
    """)
    specs = load_toml(text=one.format(name="a") + one.format(name="b"))
    assert [spec.name for spec in specs] == ["a", "b"]
    with pytest.raises(DeclarationError, match=r'pipelines\[1\].pipeline_name: found "a" again'):
        load_toml(text=one.format(name="a") * 2)


def test_problems_of_all_pipelines_come_at_once() -> None:
    with pytest.raises(DeclarationError) as refused:
        load_toml(text='[[pipelines]]\npipeline_name = "a"\nmode = 1\n[[pipelines]]\nsource = "x"\n')
    assert [problem.key for problem in refused.value.problems] == [
        "pipelines[0].source",
        "pipelines[0].target",
        "pipelines[0].mode",
        "pipelines[1].pipeline_name",
        "pipelines[1].target",
        "pipelines[1].source",
    ]


def test_credentials_in_the_file_are_warned_about_once(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    secret = 'sasl_plain_username = "me"\nsasl_plain_password = "hunter2"\nname = "incoming"'
    file.write_text(PIPELINE.replace('name = "incoming"', secret), encoding="utf-8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_toml(file)
    assert len(caught) == 1
    assert "hunter2" not in str(caught[0].message)


def test_one_of_file_and_text() -> None:
    with pytest.raises(UsageError, match="neither"):
        load_toml()
    with pytest.raises(UsageError, match="both"):
        load_toml("orders.toml", PIPELINE)


def test_a_folder_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        load_toml(tmp_path)
    file = tmp_path / "orders.toml"
    file.write_bytes(b"pipeline_name = '\xff'")
    with pytest.raises(DeclarationError, match="not UTF-8 at byte 17"):
        load_toml(file)


def test_lines_of_keys() -> None:
    text = textwrap.dedent('''\
        top = 1  # [not.a.table]
        long = """
        [not]
        a = "table\\""" still
        """
        raw = \'\'\'
        [not] = 1
        \'\'\'
        a.b."c.d" = 2
        inline = {x = 1, y = {z = [1, 2]}}
        list = [
          {p = 1},
          # between
          {p = 2, q = "]"},
        ]

        [table]
        key = "a # b"

        [[rows]]
        n = 1
        [rows.below]
        m = 1
        [[rows]]
        n = 2
        [[rows.deeper]]
        o = 1
        [[rows.deeper]]
        "o p" = 2
        [quoted."x.y"]
        z = 1979-05-27T07:32:00Z
        ''')
    expected = {
        ("top",): 1,
        ("long",): 2,
        ("raw",): 6,
        ("a", "b", "c.d"): 9,
        ("inline", "x"): 10,
        ("inline", "y", "z", 1): 10,
        ("list",): 11,
        ("list", 0, "p"): 12,
        ("list", 1, "q"): 14,
        ("table",): 17,
        ("table", "key"): 18,
        ("rows", 0, "n"): 21,
        ("rows", 0, "below", "m"): 23,
        ("rows", 1): 24,
        ("rows", 1, "deeper", 0, "o"): 27,
        ("rows", 1, "deeper", 1, "o p"): 29,
        ("quoted", "x.y", "z"): 31,
    }
    lines = key_lines(text)
    assert {place: lines.get(place) for place in expected} == expected
    assert not [place for place in lines if "not" in place]


def test_windows_line_ends() -> None:
    with pytest.raises(DeclarationError) as refused:
        load_toml(text=PIPELINE.replace("query", "qeury").replace("\n", "\r\n"))
    assert [problem.line for problem in refused.value.problems] == [6]


RICH = (
    PIPELINE
    + """
[transform]
sql = "select * from incoming"
[transform.lookups.names]
kind = "sqlite"
path = "names.db"
table = "names"
[transform.window]
kind = "tumbling"
duration_ms = 1000
[[transform.window.aggregations]]
agg = "count"
as = "n"
[transform.cdc.tables."shop.orders"]
table = "orders"
[state_store]
kind = "local"
[spark.conf]
"spark.x" = 1
"""
)
ODD_VALUES = (-1, 1.5, "", "x", True, "[]", "[1]", "{}", "{a = 1}", "[{}]", "[[{}]]", "2020-01-01", "nan")


def written(value: object) -> str:
    if isinstance(value, bool):
        return "true"
    return f'"{value}"' if value in ("", "x") else str(value)


@pytest.mark.parametrize("line", [line for line in RICH.splitlines() if "=" in line])
def test_whatever_stands_in_place_of_a_value_is_accepted_or_reported(line: str) -> None:
    key, _, _ = line.partition(" = ")
    for value in ODD_VALUES:
        for changed in (f"{key} = {written(value)}", f"{line}\nzz = {written(value)}", ""):
            with pytest.raises(DeclarationError):  # cdc beside a window is a problem in any case
                load_toml(text=RICH.replace(line, changed, 1))


@pytest.mark.parametrize("table", ["source", "target", "sources", "targets", "transform", "spark", "pipelines"])
@pytest.mark.parametrize("value", ODD_VALUES)
def test_whatever_stands_in_place_of_a_table_is_reported(table: str, value: object) -> None:
    with pytest.raises(DeclarationError):
        load_toml(text=f'pipeline_name = "p"\n{table} = {written(value)}\n')


def test_spark_and_state_store_beside_several_pipelines_are_their_defaults() -> None:
    ends = "source = { connection = 'in' }\ntarget = { connection = 'out' }\n"
    first, second = load_toml(
        text="[spark]\nmaster = 'local[1]'\n[state_store]\nkind = 'in_memory'\n"
        f"[[pipelines]]\npipeline_name = 'a'\n{ends}"
        f"[[pipelines]]\npipeline_name = 'b'\n{ends}[pipelines.spark]\nmaster = 'local[2]'\n"
    )
    assert (first.spark.master, second.spark.master) == ("local[1]", "local[2]")
    assert first.state_store.kind == second.state_store.kind == "in_memory"
    with pytest.raises(DeclarationError, match=r"<text>:2: spark.mastr: unknown key"):
        load_toml(text=f"[spark]\nmastr = 'local[1]'\n[[pipelines]]\npipeline_name = 'a'\n{ends}")
