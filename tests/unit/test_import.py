"""`import ematix_flow` is fast and loads neither Spark nor a driver."""

import json
import subprocess
import sys
from typing import Any

HEAVY = {
    "pyspark",
    "py4j",
    "pyarrow",
    "pandas",
    "numpy",
    "duckdb",
    "sqlglot",
    "confluent_kafka",
    "psycopg",
    "pymysql",
    "boto3",
    "pika",
}

PROGRAM = """
import json, sys, time
start = time.process_time()
import ematix_flow
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "loaded": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def test_importing_the_declarations_loads_nothing_heavy_and_takes_under_a_second() -> None:
    # The fastest of three: a first import also writes byte code. Of the processor, because others may be busy on it.
    reports = [_import() for _ in range(3)]
    assert HEAVY.isdisjoint(reports[0]["loaded"])
    assert min(report["seconds"] for report in reports) < 1


def _import() -> dict[str, Any]:
    output = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    report: dict[str, Any] = json.loads(output)
    return report
