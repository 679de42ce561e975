"""A table with the columns of TPC-H's lineitem goes to Delta and back, and is the same, byte by byte."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from pyspark.sql import SparkSession

from ematix_flow import DeltaLocalConnection, PostgresConnection, ematix, pk
from ematix_flow.types import BigInt, Date, Integer, Numeric, String, Text
from tests.services.postgres import Postgres, postgres

ROWS = 60_000  # as many as scale factor 0.01 has
LINEITEM = f"""
CREATE TABLE lineitem AS SELECT
    (n / 4 + 1)::bigint AS l_orderkey, (n * 7919 % 2000 + 1)::bigint AS l_partkey,
    (n * 5101 % 100 + 1)::bigint AS l_suppkey, (n % 4 + 1)::int AS l_linenumber,
    (n % 50 + 1)::numeric(12, 2) AS l_quantity, (n * 31 % 9999991 / 100.0)::numeric(12, 2) AS l_extendedprice,
    (n % 11 / 100.0)::numeric(12, 2) AS l_discount, (n % 9 / 100.0)::numeric(12, 2) AS l_tax,
    (ARRAY['R', 'A', 'N'])[n % 3 + 1]::varchar(1) AS l_returnflag,
    (ARRAY['O', 'F'])[n % 2 + 1]::varchar(1) AS l_linestatus,
    date '1992-01-01' + n % 2526 AS l_shipdate, date '1992-01-31' + n % 2466 AS l_commitdate,
    date '1992-01-02' + n % 2556 AS l_receiptdate,
    (ARRAY['DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'])[n % 4 + 1]::varchar(25) AS l_shipinstruct,
    (ARRAY['REG AIR', 'AIR', 'RAIL', 'SHIP', 'TRUCK', 'MAIL', 'FOB'])[n % 7 + 1]::varchar(10) AS l_shipmode,
    CASE n % 97 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'naïve 𝛑 "quoted"' ELSE md5(n::text) END AS l_comment
FROM generate_series(0, {ROWS - 1}) AS n"""
CHECKSUM = """
SELECT count(*), sum(l_extendedprice), md5(string_agg(md5(row::text), '' ORDER BY l_orderkey, l_linenumber))
FROM (SELECT {columns} FROM {table}) AS row"""


@ematix.table(schema="public", name="lineitem_back")
class Lineitem:
    l_orderkey: Annotated[BigInt, pk()]
    l_partkey: BigInt
    l_suppkey: BigInt
    l_linenumber: Annotated[Integer, pk()]
    l_quantity: Numeric[12, 2]
    l_extendedprice: Numeric[12, 2]
    l_discount: Numeric[12, 2]
    l_tax: Numeric[12, 2]
    l_returnflag: String[1]
    l_linestatus: String[1]
    l_shipdate: Date
    l_commitdate: Date
    l_receiptdate: Date
    l_shipinstruct: String[25]
    l_shipmode: String[10]
    l_comment: Text | None


@pytest.mark.slow
def test_lineitem_is_the_same_when_it_is_back(tmp_path: Path, spark: SparkSession) -> None:
    url = postgres().new_database()
    Postgres.query(url, LINEITEM)
    shop, lake = PostgresConnection(url=url), DeltaLocalConnection(path=str(tmp_path / "lake"))

    def load(name: str, mode: str, table: str, source: Any, target: Any) -> Any:
        how: dict[str, Any] = {"name": name, "mode": mode, "source_connection": source, "target_connection": target}
        return ematix.pipeline(target=Lineitem, source_table=table, **how)(lambda: None).sync(spark=spark)

    def checksum(table: str) -> Any:
        columns = ", ".join(Lineitem.__table__.column_names)
        return Postgres.query(url, CHECKSUM.format(columns=columns, table=table))

    assert load("there", "truncate", "lineitem", shop, lake).rows_inserted == ROWS
    assert load("back", "truncate", "public.lineitem_back", lake, shop).rows_inserted == ROWS
    assert checksum("lineitem_back") == checksum("lineitem")
    assert load("again", "merge", "public.lineitem_back", lake, shop).rows_unchanged == ROWS
