"""kill -9 while rows of a database are on their way: after a restart each of them is in the target once."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow import run_pipeline
from ematix_flow.streams.steps import CRASH_AT
from tests.contract.origins import Base, OfPostgres, OfSQLite, values

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.mark.parametrize("kind", [OfPostgres, OfSQLite], ids=lambda kind: kind.name)
@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "snapshot"])
@pytest.mark.parametrize("point", ["stage", "apply", "apply/before-commit", "commit"])
def test_nothing_is_lost_and_nothing_is_doubled(kind: Any, incremental: bool, point: str, tmp_path: Path) -> None:
    origin: Base = kind(tmp_path)
    origin.run("CREATE TABLE orders (id int PRIMARY KEY, n int)")
    origin.run(f"INSERT INTO orders VALUES {values([(i, i // 4) for i in range(100)])}")
    connection: Any = origin.connection
    place = f'url = "{connection.url}"' if hasattr(connection, "url") else f'path = "{connection.path}"'
    declaration = "\n".join(
        [
            'pipeline_name = "orders"', "[source]", f'kind = "{origin.name}"', place, 'query = "orders"',
            'incremental_column = "n"\nmax_rows_per_batch = 40' if incremental else "",
            "[target]", 'kind = "duckdb"', f'path = "{tmp_path / "out.duckdb"}"', 'table = "orders"',
        ]
    )  # fmt: skip
    died = subprocess.run(
        [sys.executable, "-m", "tests.crash.victim"],
        input=declaration.encode(),
        cwd=tmp_path,
        env=os.environ | {CRASH_AT: f"{point}@{1 if incremental else 0}", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    if incremental:
        # What came while nobody was there belongs to no batch that was planned.
        origin.run("INSERT INTO orders VALUES (1000, 0), (1001, 24), (1002, 25)")
    run_pipeline(config_str=declaration, bounded=True)
    with closing(duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True)) as db:
        found = db.execute("SELECT id FROM orders ORDER BY id").fetchall()
    late = [1001, 1002] if incremental else []
    assert [id for (id,) in found] == [*range(100), *late]
