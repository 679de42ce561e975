"""Plain PySpark, written by hand the way its documentation shows, without fences, counts or bad-row handling."""

import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame, SparkSession

from bench.measure import SCHEMA, peak_memory_mb, report


def run(
    spark: SparkSession, name: str, target: str, folder: str, work: str, limit: int | None, batches: list[float]
) -> None:
    reader = spark.readStream.schema(SCHEMA)
    if limit:
        reader = reader.option("maxFilesPerTrigger", limit)
    rows = reader.json(f"{folder}/{name}")

    def to_duckdb(batch: DataFrame, number: int) -> None:
        staged = Path(work) / f"{name}-staged-{number}"
        batch.write.parquet(str(staged))
        with duckdb.connect(f"{work}/{name}.db") as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS orders AS SELECT * FROM read_parquet(?) LIMIT 0", [f"{staged}/*.parquet"]
            )
            db.execute("INSERT INTO orders SELECT * FROM read_parquet(?)", [f"{staged}/*.parquet"])
        batches.append(time.perf_counter())

    writer = rows.writeStream.option("checkpointLocation", f"{work}/{name}-checkpoint").trigger(availableNow=True)
    if target == "duckdb":
        query = writer.foreachBatch(to_duckdb).start()
        query.awaitTermination()
    else:
        query = writer.format("parquet").option("path", f"{work}/{name}").start()
        query.awaitTermination()
        batches.extend(p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress)


def main(target: str, folder: str, work: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .getOrCreate()
    )
    times: list[float] = []
    run(spark, "small", target, folder, work, 1, times)
    began = time.perf_counter()
    run(spark, "large", target, folder, work, None, [])
    seconds = time.perf_counter() - began
    gaps = times if target == "parquet" else [b - a for a, b in pairwise(times)]
    report(seconds=seconds, small_batch_ms=1000 * statistics.median(gaps[10:]), memory_mb=peak_memory_mb())


if __name__ == "__main__":
    main(*sys.argv[1:])
