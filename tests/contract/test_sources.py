"""What every database does as a source: a snapshot per run, or what is new, nothing twice and nothing lost."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from ematix_flow import DuckDBConnection, ematix, pk, run_streaming_pipeline
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.result import RunResult
from ematix_flow.types import BigInt
from tests.contract.origins import ORIGINS, Base, OfDuckDB, values

MOMENT = datetime(2026, 5, 1, 23, 59, 59, 999999, tzinfo=UTC)
SOME_UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


@ematix.table(schema="main", name="anything")
class Anything:
    id: Annotated[BigInt, pk()]


def every(quick: str) -> Any:
    """Each database; all but one of them with the slow tests."""
    marked = [pytest.param(o, id=o.name, marks=[pytest.mark.slow] * (o.name != quick)) for o in ORIGINS]
    return pytest.mark.parametrize("origin", marked, indirect=True)


@pytest.fixture
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    made: Base = request.param(tmp_path)
    return made


def read(origin: Base, spark: SparkSession, query: str = "orders", **more: Any) -> RunResult:
    """A run into a DuckDB file beside it."""
    declared: dict[str, Any] = {"name": "copy", "target_table": "copied", **more}
    target = DuckDBConnection(path=str(origin.folder / "out.duckdb"))
    return run_streaming_pipeline(
        source=origin.connection, source_query=query, target=target, bounded=True, spark=spark, **declared
    )


def copied(origin: Base, query: str = "SELECT id FROM copied ORDER BY id") -> list[Any]:
    with duckdb.connect(str(origin.folder / "out.duckdb"), read_only=True) as db:
        found = db.execute(query).fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


@every("postgres")
def test_new_rows_of_a_growing_column_come_once_ties_and_late_ones_included(origin: Base, spark: SparkSession) -> None:
    origin.run(
        f"CREATE TABLE orders (id int PRIMARY KEY, name varchar(20), seen {origin.moment})",
        f"INSERT INTO orders VALUES {values([(1, chr(39) + 'a' + chr(39), _at(1)), (2, 'NULL', _at(2))])}",
    )
    how = {"incremental_column": "seen", "lookback": 60_000, "mode": "append"}
    assert read(origin, spark, **how).rows_written == {"copied": 2}
    assert read(origin, spark, **how).batches == 0
    # The same time as the last one, a little before it, longer before it than anyone looks back, and new.
    late = [(3, "'tie'", _at(2)), (4, "'late'", _at(1, 30)), (5, "'too late'", _at(0)), (6, "'new'", _at(3))]
    origin.run(f"INSERT INTO orders VALUES {values(late)}")
    assert read(origin, spark, **how).rows_written == {"copied": 3}
    assert copied(origin) == [1, 2, 3, 4, 6]
    # The newest row is gone, and another one comes late.
    origin.run("DELETE FROM orders WHERE id = 6", f"INSERT INTO orders VALUES (7, 'x', {_at(2, 30)})")
    read(origin, spark, **how)
    assert read(origin, spark, **how).batches == 0
    assert copied(origin) == [1, 2, 3, 4, 6, 7]
    assert copied(origin, "SELECT name, epoch_us(seen) FROM copied WHERE id = 1") == [("a", 1767225660_000000)]


@every("")
def test_a_snapshot_is_taken_once_per_run(origin: Base, spark: SparkSession) -> None:
    origin.run("CREATE TABLE orders (id int, amount decimal(10, 2))", "INSERT INTO orders VALUES (1, 1.5), (2, 2.5)")
    query = "SELECT id, amount * 2 AS amount FROM orders WHERE id < 10"
    how = {"mode": "truncate", "source_name": "orders"}
    assert read(origin, spark, query, **how).batches == 1
    origin.run("DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (3, 0.25), (11, 1)")
    assert read(origin, spark, query, **how).rows_written == {"copied": 2}
    assert copied(origin, "SELECT id, amount::varchar FROM copied ORDER BY id")[1][0] == 3
    assert [float(amount) for _, amount in copied(origin, "SELECT id, amount FROM copied ORDER BY id")] == [5.0, 0.5]


@every("")
def test_a_long_table_comes_in_batches_and_whole(origin: Base, spark: SparkSession) -> None:
    origin.run("CREATE TABLE orders (id int, n bigint)")
    for start in range(0, 30_000, 5_000):
        # Every value seven times; no key tells such rows apart but all of their content.
        origin.run(f"INSERT INTO orders VALUES {values([(i, i // 7) for i in range(start, start + 5_000)])}")
    result = read(origin, spark, incremental_column="n", max_rows_per_batch=10_000)
    assert result.batches == 3
    assert copied(origin, "SELECT count(*), count(DISTINCT id) FROM copied") == [(30_000, 30_000)]
    origin.run("INSERT INTO orders VALUES (99999, 4285), (100000, 4286)")
    assert read(origin, spark, incremental_column="n").rows_written == {"copied": 2}


@every("sqlite")
def test_what_cannot_be_read_is_told_in_words(origin: Base, spark: SparkSession) -> None:
    origin.run("CREATE TABLE orders (id int, name varchar(20))", "INSERT INTO orders VALUES (1, 'a'), (2, '7')")
    with pytest.raises(FlowError) as missing:
        read(origin, spark, "nowhere")
    assert missing.value.code == "source-refused"
    assert "nowhere" in str(missing.value)
    with pytest.raises(DeclarationError, match=r"no column nmae.*did you mean"):
        read(origin, spark, incremental_column="nmae")
    with pytest.raises(FlowError, match=r"row .*cannot read \"a\" as int"):
        read(origin, spark, schema="id int, name int")
    result = read(origin, spark, schema="id int, name int", transform_on_error="dlq")
    assert (result.rows_written, result.dlq_rows) == ({"copied": 1}, {"decode": 1})


TYPES = {
    "postgres": {
        "bool": True, "int2": -(2**15), "int8": -(2**63), "float4": 1.5, "float8": 0.1, "numeric(30,4)": "-1.2500",
        "text": "ünï'\"\n\\\\ %s", "bytea": b"\0\xff", "date": date(1, 1, 1), "timestamp": MOMENT.replace(tzinfo=None),
        "timestamptz": MOMENT, "uuid": SOME_UUID, "jsonb": '{"a": [1]}', "int[]": "{1,NULL}", "interval": "1 day",
    },
    "mysql": {
        "tinyint(1)": True, "smallint": -(2**15), "bigint unsigned": str(2**64 - 1), "float": 0.1, "double": 0.1,
        "decimal(30,4)": "-1.2500", "text CHARACTER SET utf8mb4": "ünï'\"\n %s", "blob": b"\0\xff",
        "date": date(1, 1, 1), "datetime(6)": MOMENT.replace(tzinfo=None), "timestamp(6) NULL": MOMENT,
        "json": '{"a": [1]}', "bit(1)": True,
        "enum('x','y')": "y", "time": "10:11:12", "year": 2026,
    },
    "sqlite": {
        "BOOLEAN": True, "BIGINT": -(2**63), "DOUBLE": 0.1, "DECIMAL(30,4)": "-1.2500", "TEXT": "ünï'\"\n %s",
        "BLOB": b"\0\xff", "DATE": date(1, 1, 1), "TIMESTAMP": MOMENT,
    },
    "duckdb": {
        "boolean": True, "utinyint": 255, "hugeint": str(2**100), "float": 1.5, "double": 0.1,
        "decimal(30,4)": "-1.2500", "varchar": "ünï'\"\n %s", "blob": b"\0\xff", "date": date(1, 1, 1),
        "timestamp": MOMENT.replace(tzinfo=None), "timestamptz": MOMENT, "uuid": SOME_UUID,
        "int[]": [1, None], "struct(a int, b varchar)": {"a": 1, "b": None},
    },
}  # fmt: skip


@every("")
def test_every_type_arrives_as_it_was(origin: Base, spark: SparkSession) -> None:
    """Seen in a preview, beside a row of NULLs."""
    kinds = TYPES[origin.name]
    columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
    origin.run(f"CREATE TABLE orders (id int, {', '.join(f'{name} {kind}' for name, kind in columns.items())})")
    origin.fill("orders", [1, *kinds.values()])
    origin.fill("orders", [2, *[None] * len(kinds)])

    @ematix.pipeline(target=Anything, source_connection=origin.connection, target_connection=origin.connection)
    def look() -> str:
        return "SELECT * FROM orders ORDER BY id"

    full, empty = (list(row.values())[1:] for row in look.preview(2, spark=spark))
    assert set(empty) == {None}
    for found, (kind, value) in zip(full, kinds.items(), strict=True):
        if isinstance(found, Decimal):
            assert str(found) == value, kind
        elif isinstance(found, float):
            assert found == pytest.approx(value, rel=1e-7), kind
        else:
            # Spark gives times without their zone.
            wanted = value.replace(tzinfo=None) if isinstance(value, datetime) else value
            assert (bytes(found) if isinstance(found, bytearray) else found) == wanted, kind


def test_a_lookback_needs_a_column_that_can_be_counted(tmp_path: Path, spark: SparkSession) -> None:
    origin = OfDuckDB(tmp_path)
    origin.run("CREATE TABLE orders (id int, name varchar)", "INSERT INTO orders VALUES (1, 'a')")
    with pytest.raises(FlowError, match="numbers or times"):
        read(origin, spark, incremental_column="name", lookback=5)


def _at(minute: int, second: int = 0) -> str:
    return f"'2026-01-01 00:{minute:02}:{second:02}'"
