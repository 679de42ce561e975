"""Others who bring rows into PostgreSQL or out of it, each in a process and an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from bench.original import answer_of

# Their clock starts when everything is imported and, for Spark, when a few rows have gone the same way.
PANDAS = r"""
import json, sys, time
import pandas, pyarrow.parquet, sqlalchemy
folder, url, rows = sys.argv[1], sys.argv[2].replace("postgresql://", "postgresql+psycopg://"), int(sys.argv[3])
began = time.perf_counter()
frame = pyarrow.parquet.read_table(folder).slice(0, rows).to_pandas()
frame.to_sql("orders", sqlalchemy.create_engine(url), index=False)
print(json.dumps({"seconds": time.perf_counter() - began, "rows": len(frame)}))
"""
JDBC = r"""
import json, sys, time
from pyspark.sql import SparkSession
folder, few, url, driver = sys.argv[1:5]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", driver)
spark = builder.config("spark.driver.memory", "2g").config("spark.sql.session.timeZone", "UTC").getOrCreate()
place, _, user = url.partition("://")[2].rpartition("@")[::-1]

def write(source, table):
    options = {"user": user, "driver": "org.postgresql.Driver", "batchsize": "10000", "reWriteBatchedInserts": "true"}
    spark.read.parquet(source).write.jdbc(f"jdbc:postgresql://{place}", table, properties=options)

write(few, "few")
began = time.perf_counter()
write(folder, "orders")
print(json.dumps({"seconds": time.perf_counter() - began, "rows": spark.read.parquet(folder).count()}))
"""
CONNECTORX = r"""
import json, sys, time
import connectorx, duckdb
url, file = sys.argv[1:3]
began = time.perf_counter()
columns = "id, customer, amount, CAST(price AS text) AS price, paid, ts"
found = connectorx.read_sql(
    url, f"SELECT {columns} FROM orders", return_type="arrow", partition_on="id", partition_num=2
)
with duckdb.connect(file) as out:
    out.execute("CREATE TABLE orders AS SELECT * REPLACE (CAST(price AS DECIMAL(12, 2)) AS price) FROM found")
print(json.dumps({"seconds": time.perf_counter() - began, "rows": len(found)}))
"""
PACKAGES = ("pandas<3", "pyarrow", "sqlalchemy", "psycopg[binary]", "connectorx", "duckdb")


def run(script: str, *arguments: object, environment: Path | None = None) -> dict[str, Any]:
    """What a script tells, in the environment of this bench unless another is given."""
    python = {"python": str(environment / "bin/python")} if environment else {}
    return answer_of(["-P", "-c", script, *map(str, arguments)], **python)


def installed(environment: Path) -> Path:
    """The packages of the scripts, from the package index."""
    if not environment.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([str(environment / "bin/pip"), "install", "--quiet", *PACKAGES], check=True)
    return environment


def jdbc_driver(folder: Path, coordinate: str = "org.postgresql:postgresql:42.7.8") -> Path:
    """Fetched as this product fetches its own libraries."""
    command = [sys.executable, "-m", "ematix_flow.streams.ivy", str(folder), coordinate]
    subprocess.run(command, check=True, capture_output=True)
    return next((folder / "jars").glob("*.jar"))
