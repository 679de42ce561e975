"""A kernel bound to Spark: windows close, late and bad rows arrive, and a copy of the checkpoint goes on."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ematix_flow.specs import SparkSettings
from ematix_flow.state.kernel import TIME, Operator, Step
from ematix_flow.streams.envelope import ERROR, PAYLOAD, POSITION, BadRow, Origin, as_timestamp
from ematix_flow.streams.session import session_for
from ematix_flow.streams.stateful import input_of, stateful
from ematix_flow.streams.tagging import KEEP
from tests.counting import Counting, counting

COLUMNS = "shop string, amount double, at timestamp, wanted boolean"


@dataclass(frozen=True)
class Noted(Counting):
    """Leaves a line for each of its calls."""

    notes: str = field(kw_only=True)

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        with Path(self.notes).open("a", encoding="utf-8") as notes:
            notes.write("called\n")
        return super().step(state, rows, watermark)


@dataclass(frozen=True)
class Echo(Counting):
    """Emits what it gets, with how many rows it got at once."""

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        met = rows.drop_columns([TIME]).append_column("met", pa.repeat(len(rows), len(rows)))
        return Step(None, met, rows.slice(0, 0), None)


@dataclass
class Feed:
    """Files of rows, one per batch, and a query over them."""

    folder: Path
    session: SparkSession
    windows: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    bad: dict[int, list[BadRow]] = field(default_factory=dict)

    def arrive(self, number: int, *rows: str) -> None:
        """Each as `shop amount minute:second`."""
        file = self.folder / "inbox" / f"{number}.jsonl"
        file.parent.mkdir(exist_ok=True)
        parts = [row.split() for row in rows]
        file.write_text("".join(_line(shop, amount, *at) for shop, amount, *at in parts), encoding="utf-8")
        os.utime(file, (1_767_225_600 + number,) * 2)

    def run(
        self, operator: Operator, checkpoint: str = "checkpoint", look: Callable[[DataFrame, int], None] | None = None
    ) -> list[Any]:
        reader = self.session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        rows = reader.json(str(self.folder / "inbox")).select(
            "shop",
            "amount",
            "at",
            F.col("wanted").alias(KEEP),
            F.when(F.col("shop") == "broken", '{"stage": "decode", "code": "bad-json"}').alias(ERROR),
            F.lit("here").alias(POSITION),
            F.col("shop").alias(PAYLOAD),
        )

        def take(batch: DataFrame, number: int) -> None:
            cached = batch.persist()
            if look is not None:
                look(cached, number)
            found = cached.collect()
            good = [row for row in found if row[KEEP] and row[ERROR] is None]
            self.windows[number] = sorted((row.window_start.minute, row.shop, row.orders, row.amount) for row in good)
            self.bad[number] = [BadRow.read(row[ERROR]) for row in found if row[ERROR] is not None]
            cached.unpersist()

        given = input_of(rows, operator, Origin("shops"))
        writer = stateful([given], operator, given.origin).writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / checkpoint)).start()
        query.awaitTermination()
        return query.recentProgress


@pytest.fixture
def feed(tmp_path: Path, spark: SparkSession) -> Feed:
    return Feed(tmp_path, session_for(SparkSettings(), spark=spark))


def test_a_time_that_no_calendar_has_is_none(spark: SparkSession) -> None:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    numbers = spark.createDataFrame(
        [(n,) for n in (0, first, last, first - 1, last + 1, 2**63 - 1, -(2**63))], "t long"
    )
    fractions = spark.createDataFrame([(n,) for n in (0.25, -0.25, float(last + 1), float("nan"), None)], "t double")
    decimals = fractions.where("abs(t) < 1").select(F.col("t").cast("decimal(38, 18)"))
    texts = spark.createDataFrame([("1970-01-01T00:00:01Z",), ("+57971-02-25T00:00:00Z",), ("noon",)], "t string")
    found = [
        [row[0] for row in rows.select(F.unix_micros(as_timestamp(F.col("t"), rows.schema[0].dataType))).collect()]
        for rows in (numbers, fractions, decimals, texts)
    ]
    assert found[0] == [0, first * 1000, last * 1000, None, None, None, None]
    assert found[1:] == [[250, -250, None, None, None], [250, -250], [1_000_000, None, None]]


def test_windows_close_late_rows_arrive_and_a_copied_checkpoint_goes_on(feed: Feed, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    operator = Operator(**{**vars(counting(late="dlq")), "kernel": Noted(notes=str(notes))})
    copy = tmp_path / "copy"

    def look(batch: DataFrame, number: int) -> None:
        if number == 1:
            before = notes.read_text().count("called")
            batch.count()
            once = notes.read_text().count("called")
            batch.count()
            assert before < once == notes.read_text().count("called"), "a batch that is kept is computed once"
            shutil.copytree(tmp_path / "checkpoint", copy)

    feed.arrive(0, "a 1 0:01", "a 2 0:59", "b 4 1:30", "broken 1 59:00", "a 8 never", "unwanted 1 59:00")
    feed.arrive(1, "a 1 0:30", "b 1 1:31", "c 1 5:00")
    progress = feed.run(operator, look=look)

    # The watermark is 1:30 in batch 1, so that the first minute is closed; 5:00 closes the second one in batch 2.
    assert feed.windows == {0: [], 1: [(0, "a", 2, 3.0)], 2: [(1, "b", 2, 5.0)]}
    assert [(bad.stage, bad.code) for bad in feed.bad[0]] == [("decode", "bad-json"), ("event_time", "no-event-time")]
    (late,) = feed.bad[1]
    assert (late.stage, late.source, late.position, late.payload) == ("late", "shops", "here", b"a")
    assert late.event_ts is not None
    assert late.event_ts.minute == 0
    assert "the watermark, which was at 2026-01-01T00:01:30.000+00:00" in (late.message or "")
    assert [p["eventTime"]["watermark"][11:19] for p in progress] == ["00:00:00", "00:01:30", "00:05:00"]
    # Both partitions have written the version that follows batch 1, also the one that got no row.
    assert len(list(copy.glob("state/0/*/2.*"))) == len(list(copy.glob("state/0/[0-9]*"))) == 2
    assert not (copy / "commits" / "1").exists()

    # The copy was taken before batch 1 was committed: it is repeated, with the same result, and goes on.
    feed.arrive(2, "c 2 5:30", "c 4 6:00")
    before, feed.windows = feed.windows, {}
    feed.run(operator, checkpoint="copy")
    assert feed.windows == {1: before[1], 2: before[2], 3: [(5, "c", 2, 3.0)]}, feed.windows


def test_every_type_survives_and_panes_do_not_meet(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2, 3],
            "big": [2**63 - 1, None, -(2**63)],
            "money": pa.array([Decimal("1234567890123456789012345678.9012"), None, Decimal(0)], pa.decimal128(38, 4)),
            "flag": [True, None, False],
            "raw": [b"\0\xff", None, b""],
            "day": [date(1, 1, 1), None, date(9999, 12, 31)],
            "local": pa.array([datetime(1066, 10, 14), None, datetime(3000, 1, 1)], pa.timestamp("us")),  # noqa: DTZ001
            "list": [[1, None], None, []],
            "at": pa.array([0, 59_999, 60_000], pa.int64()),
        }
    )
    (tmp_path / "inbox").mkdir()
    pq.write_table(table, tmp_path / "inbox" / "rows.parquet")
    inputs = tuple(table.column_names[:-1])
    output = table.select(inputs).schema.append(pa.field("met", pa.int64()))
    operator = Operator(
        Echo(), output, event_time="at", keys=("raw", "money"), inputs=inputs, buckets=1, block_ms=60_000
    )
    found: list[Any] = []

    rows = session_for(SparkSettings(), spark=spark).readStream.schema(
        spark.read.parquet(str(tmp_path / "inbox")).schema
    )
    rows = rows.parquet(str(tmp_path / "inbox")).withColumn(ERROR, F.lit(None).cast("string"))
    writer = (
        stateful([input_of(rows, operator)], operator)
        .where(KEEP)
        .writeStream.foreachBatch(lambda batch, _: found.append(batch.toArrow()))
    )
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()

    results = found[0].sort_by("id")
    assert results.select(inputs).to_pylist() == table.select(inputs).to_pylist()
    assert results["met"].to_pylist() == [2, 2, 1]


def _line(shop: str, amount: str, at: str = "") -> str:
    row: dict[str, Any] = {"shop": shop, "amount": float(amount), "wanted": shop != "unwanted"}
    if at != "never":
        row["at"] = f"2026-01-01T00:{at.rjust(5, '0')}Z"
    return json.dumps(row) + "\n"
