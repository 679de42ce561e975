"""Functions declared with `@udf`, called from SQL: every type, errors by row, any name, from any module."""

from __future__ import annotations

import importlib
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ematix_flow import DuckDBConnection, ObjectStoreLocalConnection, run_streaming_pipeline, udaf, udf
from ematix_flow.errors import FlowError
from ematix_flow.streams.functions import BadFunction, register
from ematix_flow.udf import ScalarUdf
from tests.orders import Orders

VALUES = {
    "boolean": "true",
    "tinyint": "-128Y",
    "smallint": "32767S",
    "int": "-7",
    "bigint": "9223372036854775807L",
    "float": "CAST(1.5 AS FLOAT)",
    "double": "1e300D",
    "decimal(38,10)": "CAST('1234567890123456789012345678.0123456789' AS DECIMAL(38, 10))",
    "string": "'äöü 😀'",
    "binary": "X'00FF'",
    "date": "DATE '1582-10-15'",
    "timestamp": "TIMESTAMP '2026-03-29 01:30:00.000001Z'",
    "timestamp_ntz": "TIMESTAMP_NTZ '2026-03-29 02:30:00.000001'",
    "array<bigint>": "array(1L, NULL)",
    "map<string,double>": "map('a', 1D, 'b', NULL)",
    "struct<a:int,b:array<date>>": "named_struct('a', 1, 'b', array(DATE '2026-01-01', NULL))",
}


def half(numbers: pa.Array) -> pa.Array:
    """Raises for a whole batch if one of its numbers is odd."""
    for number in numbers.to_pylist():
        if number is not None and number % 2:
            raise ValueError(f"{number} is odd")
    return pc.divide(numbers, 2)


HALF = udf("bigint", "bigint")(half)


def selected(spark: SparkSession, sql: str, *udfs: ScalarUdf) -> DataFrame:
    session = spark.newSession()
    register(udfs, session)
    return session.sql(sql)


def test_every_type_comes_and_goes_unchanged_null_included(spark: SparkSession) -> None:
    columns = [f"c{number}" for number in range(len(VALUES))]
    all_of_them = ",".join(f"{name}:{kind}" for name, kind in zip(columns, VALUES, strict=True))
    gather = udf(list(VALUES), f"struct<{all_of_them}>", name="gather")(
        lambda *arrays: pa.StructArray.from_arrays(arrays, columns)
    )
    given = [f"IF(id = 0, {value}, NULL) AS {name}" for name, value in zip(columns, VALUES.values(), strict=True)]
    values = f"SELECT {', '.join(given)} FROM range(2)"
    rows = selected(spark, f"SELECT g.* FROM (SELECT gather({', '.join(columns)}) AS g FROM ({values}))", gather)
    expected = spark.sql(values)
    assert rows.dtypes == expected.dtypes
    assert rows.collect() == expected.collect()


def test_arguments_and_results_are_cast_to_the_declared_types(spark: SparkSession) -> None:
    add = udf(("double", "string"), "decimal(10,2)", name="add")(lambda x, text: pc.add(x, pc.cast(text, pa.float64())))
    rows = selected(spark, "SELECT add(1Y, 2) AS y FROM range(1)", add)
    assert rows.dtypes == [("y", "decimal(10,2)")]
    assert [str(row.y) for row in rows.collect()] == ["3.00"]


def test_a_row_that_raises_fails_alone(spark: SparkSession) -> None:
    rows = selected(
        spark, "SELECT id, CASE WHEN id <> 333 THEN Half(id * 2 - (id = 333)::int) END h FROM range(1000)", HALF
    )
    assert [row.h for row in rows.orderBy("id").collect()] == [None if i == 333 else i for i in range(1000)]
    with pytest.raises(PySparkException, match="udf half: ValueError: 665 is odd"):
        selected(spark, "SELECT half(id * 2 - (id = 333)::int) FROM range(1000)", HALF).collect()


def test_a_result_that_is_no_column_for_the_rows_is_told(spark: SparkSession) -> None:
    wrong = {
        "it returned Int64Scalar, not an Arrow array": pc.sum,
        "it returned 3 values for 4 rows": lambda numbers: numbers.slice(1),
        "it returned list<.*>, which cannot become int32": lambda numbers: pa.array([[1]] * len(numbers)),
        "ArrowInvalid: Integer value 1099511627776": lambda numbers: pa.array([1 << 40] * len(numbers)),
    }
    session = spark.newSession()
    register([udf("bigint", "int", name=f"f{number}")(each) for number, each in enumerate(wrong.values())], session)
    for number, reason in enumerate(wrong):
        with pytest.raises(PySparkException, match=f"udf f{number}: {reason}"):
            session.sql(f"SELECT f{number}(id) FROM range(0, 4, 1, 1)").collect()


def test_functions_are_called_wherever_sql_takes_a_function_once_for_each_call(spark: SparkSession) -> None:
    rows = selected(
        spark,
        """
        SELECT half(id - id % 2) AS pair, sum(half(half(id * 4))) AS total
        FROM range(0, 6, 1, 1)
        WHERE half(id * 2) > 0
        GROUP BY half(id - id % 2)
        HAVING max(half(id * 2)) > 1
        ORDER BY pair
        """,
        HALF,
    )
    assert rows.collect() == [(1, 5), (2, 9)]
    twice = selected(spark, "SELECT half(id), half(id) + 1 FROM range(3)", HALF)
    plan = str(twice._jdf.queryExecution().executedPlan())  # type: ignore[operator]
    assert plan.count("_flow_python_half(") == 2, plan


def test_functions_of_the_main_module_and_of_a_script_s_folder_reach_the_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words_of_mine.py").write_text(
        "from pyarrow.compute import utf8_reverse as backwards\n\ndef turn(a):\n    return backwards(a)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from_folder = udf("string", "string")(importlib.import_module("words_of_mine").turn)
    main: dict[str, Any] = {"__name__": "__main__"}
    exec("import pyarrow.compute as pc\ndef trim(a):\n    return pc.utf8_trim_whitespace(a)", main)
    from_main = udf("string", "string", name="clean")(main["trim"])
    assert selected(spark, "SELECT turn(clean(' abc ')) AS t", from_folder, from_main).collect() == [("cba",)]


def test_what_cannot_work_is_refused_in_words(spark: SparkSession) -> None:
    with pytest.raises(BadFunction, match="Spark has a function upper of its own"):
        register([udf("string", "string", name="upper")(lambda texts: texts)], spark)
    with pytest.raises(BadFunction, match="2 functions are called half"):
        register([HALF, udf("bigint", "bigint", name="HALF")(half)], spark)
    with pytest.raises(BadFunction, match="function ticks takes no array"):
        register([udf((), "timestamp", name="ticks")(lambda: None)], spark)
    lock = threading.Lock()
    with pytest.raises(BadFunction, match="function waits cannot be sent to Spark's workers"):
        register([udf("bigint", "string", name="waits")(lambda _: lock.acquire())], spark)


def test_in_a_pipeline_a_row_that_raises_becomes_a_dead_letter(orders: Orders) -> None:
    orders.numbered(range(10))
    run_streaming_pipeline(
        name="orders",
        source=ObjectStoreLocalConnection(path=str(orders.inbox), format="json_lines"),
        schema="id long, amount double",
        transform_sql="SELECT id, half(id) AS half FROM source WHERE half(id) <> 2 AND id NOT IN (5, 7, 9)",
        transform_on_error="dlq",
        udfs=[HALF],
        target=DuckDBConnection(path=str(orders.database)),
        target_table=("main", "orders"),
        bounded=True,
    )
    assert orders.in_database() == [(0, 0), (2, 1), (6, 3), (8, 4)]
    reasons = sorted(letter.error for letter in orders.dead_letters())
    assert ["udf half: ValueError: 1 is odd" in reasons[0], "udf half: ValueError: 3 is odd" in reasons[1]] == [
        True,
        True,
    ]


@udaf(args=["double", "bigint"], state=["double", "bigint"], returns="decimal(10,2)")
class Weighted:
    """The mean of values, each as often as its weight says."""

    def __init__(self) -> None:
        self.total, self.weight = 0.0, 0

    def update_batch(self, values: pa.Array, weights: pa.Array) -> None:
        if pc.min(weights).as_py() < 0:
            raise ValueError("a negative weight")
        self.total += pc.sum(pc.multiply(values, weights)).as_py()
        self.weight += pc.sum(weights).as_py()

    def merge_batch(self, totals: pa.Array, weights: pa.Array) -> None:
        self.total += pc.sum(totals).as_py()
        self.weight += pc.sum(weights).as_py()

    def state(self) -> list[Any]:
        return [self.total, self.weight]

    def evaluate(self) -> Any:
        return Decimal(f"{self.total / self.weight:.2f}") if self.weight else None


def test_an_aggregate_of_the_users_own_is_called_from_sql(orders: Orders) -> None:
    declared = {
        "source": ObjectStoreLocalConnection(path=str(orders.inbox), format="json_lines"),
        "schema": "id long, amount double",
        "transform_sql": "SELECT id % 2 AS odd, Weighted(amount, id) AS mean FROM source GROUP BY id % 2",
        "aggregate_udfs": [Weighted],
        "target": DuckDBConnection(path=str(orders.database)),
        "target_table": "orders",
        "bounded": True,
    }
    orders.arrive("0.jsonl", [{"id": i, "amount": i / 2} for i in range(1, 5)])
    run_streaming_pipeline(name="orders", **declared)
    assert orders.in_database() == [(0, Decimal("1.67")), (1, Decimal("1.25"))]

    orders.arrive("1.jsonl", [{"id": -1, "amount": 1.0}])
    with pytest.raises(FlowError, match="udaf Weighted failed in update_batch: ValueError: a negative weight"):
        run_streaming_pipeline(name="orders", **declared)
