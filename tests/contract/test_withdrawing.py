"""A withdrawn row in a table that SQLite keeps without row numbers; no Spark, the staged rows are written here."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ematix_flow import SQLiteConnection
from ematix_flow.sinks.base import Batch, Staged
from ematix_flow.sinks.opening import open_sink
from ematix_flow.specs import Target
from ematix_flow.state.kernel import GONE

_TABLES = """
CREATE TABLE t (a TEXT, id BIGINT, name TEXT NOT NULL, PRIMARY KEY (a, id)) WITHOUT ROWID;
INSERT INTO t VALUES ('x', 1, 'old'), ('y', 1, 'old'), ('x', 2, 'old'), ('x', 3, 'old');
CREATE TABLE _ematix_flow_fences (pipeline, target, generation, batch, applied_at, PRIMARY KEY (pipeline, target))"""


def test_sqlite_deletes_by_the_primary_key_where_rows_have_no_number(tmp_path: Path) -> None:
    file, folder = tmp_path / "a.sqlite", tmp_path / "staged"
    folder.mkdir()
    rows = pa.table({"a": ["x", "x", "x"], "id": [1, 2, 9], "name": [None, "new", None], GONE: [1, 0, 1]})
    pq.write_table(rows, folder / "part-0.parquet")
    target = Target(connection=SQLiteConnection(path=str(file)), table="t", mode="merge", keys=["a", "id"])
    batch = Batch("shop", "g", 0, scratch=lambda _: folder)
    with closing(sqlite3.connect(file)) as db:
        db.executescript(_TABLES)
        assert open_sink(target, "t").apply(Staged(folder, tuple(rows.column_names)), batch, batch.fence("t")).done
        found = db.execute("SELECT a, id, name FROM t ORDER BY a, id").fetchall()
    assert found == [("x", 2, "new"), ("x", 3, "old"), ("y", 1, "old")]
