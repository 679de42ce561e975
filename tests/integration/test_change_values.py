"""What of an envelope Spark makes texts and places of, without a pipeline around it."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ematix_flow import CDC
from ematix_flow.cdc.envelopes import envelope_of
from ematix_flow.cdc.logical import Field, readable

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
IN_ORDER: dict[str, list[dict[str, Any]]] = {
    "LSN, whatever the time": [{"lsn": 9, "ts_ms": 99}, {"lsn": 10, "ts_ms": 5}, {"lsn": 2**63 - 1, "ts_ms": 1}],
    "binlog": [
        {"file": "bin.000002", "pos": 9, "gtid": f"{UUID}:70"},
        {"file": "bin.000002", "pos": 10, "gtid": f"{UUID}:8"},
        {"file": "bin.999999", "pos": 5},
        {"file": "bin.1000000", "pos": 4},
    ],
    "GTID of MySQL": [{"gtid": f"{UUID}:9", "ts_ms": 7}, {"gtid": f"{UUID}:10", "ts_ms": 6}],
    "GTID of MariaDB": [{"gtid": "0-2-9"}, {"gtid": "0-1-10"}],
    "times with fractions": [{"ts_ms": 1_700_000_000.1}, {"ts_ms": "1700000000.25"}, {"ts_ms": 1_700_000_000.7}],
    "times written out": [{"ts_ms": "2026-01-01T00:00:00.1Z"}, {"ts_ms": "2026-01-01T01:00:01+01:00"}],
    "times, then places": [{"ts_ms": 1_700_000_000_000}, {"ts_ms": 1_700_000_000_001}, {"lsn": 1}],
}


@pytest.mark.parametrize("family", IN_ORDER)
def test_later_places_are_greater(family: str, spark: SparkSession) -> None:
    envelope = envelope_of(CDC())
    sources = IN_ORDER[family]
    plain = [{"op": "u", "source": source} for source in sources]
    texts = [json.dumps(one) for change in plain for one in (change, {"schema": None, "payload": change})]
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    at = [row[0] for row in rows.select(F.from_json("text", envelope.ddl).alias("e")).selectExpr("e.*").selectExpr(
        f"{envelope.at} AS at"
    ).collect()]  # fmt: skip
    assert at[::2] == at[1::2], "the wrapper changes nothing"
    assert at[::2] == sorted(set(at))


def test_values_that_are_coded_are_written_out(spark: SparkSession) -> None:
    time = "io.debezium.time."
    cases = [
        ("253402300799999999", f"{time}MicroTimestamp", "9999-12-31T23:59:59.999999Z"),
        ("-62135596800000", f"{time}Timestamp", "0001-01-01T00:00:00.000000Z"),
        ("-1", f"{time}NanoTimestamp", "1969-12-31T23:59:59.999999Z"),
        ("-5400000001", f"{time}MicroTime", "-01:30:00.000001"),
        ("93784000", f"{time}Time", "26:03:04.000000"),
        ("93784000005", f"{time}MicroDuration", "26:03:04.000005"),
        ("P1Y-2M3DT4H5M6.7S", f"{time}Interval", "1 years -2 mons 3 days 4 hours 5 mins 6.7 secs"),
        ("forever", f"{time}Interval", "forever"),
        *(
            (None, f"{time}{kind}", None)
            for kind in ("Date", "MicroTimestamp", "MicroTime", "MicroDuration", "Interval")
        ),
        (None, "org.apache.kafka.connect.data.Decimal", None),
    ]
    written = [readable(F.lit(text).cast("string"), Field("string", logical)) for text, logical, _ in cases]
    assert list(spark.range(1).select(*written).collect()[0]) == [wanted for *_, wanted in cases]
