"""Rows from the executors into a PostgreSQL table: each partition over its own connection, by binary COPY."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COPY = "_flow_copy"
"""Hidden column of copied rows: the number of the attempt that copied them."""

_kept: dict[str, Any] = {}

_RESULT = "copy long, rows long, with_null array<string>, failure string"


@dataclass(frozen=True)
class Copied:
    """What has arrived. A row of any other copy is of an attempt that Spark gave up or repeated."""

    copies: tuple[int, ...]
    rows: int
    with_null: frozenset[str]
    """The columns in which there is a NULL."""
    failure: str = ""
    """In the words of the driver, if a partition could not be copied."""


def copied(rows: DataFrame, conninfo: str, schema: str, table: str) -> Copied:
    """One Spark job. The table has the columns of the rows, and `COPY`."""
    parts = rows.mapInArrow(partial(_copy, conninfo, schema, table), _RESULT).collect()
    return Copied(
        tuple(part["copy"] for part in parts),
        sum(part["rows"] for part in parts),
        frozenset(name for part in parts for name in part["with_null"]),
        next((part["failure"] for part in parts if part["failure"]), ""),
    )


def _copy(conninfo: str, schema: str, table: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One partition. A failure is told rather than raised: Spark would try again at once, and bury the words."""
    import pyarrow as pa
    from adbc_driver_manager import Error

    first = next(batches, None)
    if first is None:
        return
    copy, rows, with_null, failure = secrets.randbits(63), 0, set[str](), ""

    def numbered() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in chain([first], batches):
            rows += batch.num_rows
            with_null.update(name for name in batch.schema.names if batch[name].null_count)
            yield batch.append_column(COPY, pa.repeat(pa.scalar(copy, pa.int64()), batch.num_rows))

    columns = first.schema.append(pa.field(COPY, pa.int64()))
    try:
        _ingest(conninfo, schema, table, pa.RecordBatchReader.from_batches(columns, numbered()))
    except Error as error:
        failure = str(error)
    yield pa.record_batch(
        [[copy], [rows], pa.array([sorted(with_null)], pa.list_(pa.string())), [failure]],
        names=["copy", "rows", "with_null", "failure"],
    )


def _ingest(conninfo: str, schema: str, table: str, rows: pa.RecordBatchReader) -> None:
    """One COPY, so that all rows arrive or none."""
    with _connected(conninfo).cursor() as cursor:
        cursor.adbc_ingest(table, rows, mode="append", db_schema_name=schema)


def _connected(conninfo: str) -> Any:
    """The connection of this worker's last partition, if it is to the same database and was not lost since. A new one
    takes as long as a small batch, because the driver learns all types of the database first."""
    from adbc_driver_manager import Error
    from adbc_driver_postgresql import dbapi

    db = _kept.pop(conninfo, None)
    try:
        if db is not None:
            with db.cursor() as cursor:
                cursor.execute("SELECT 1")
    except Error:
        db = None
    for other in _kept.values():
        other.close()
    _kept.clear()
    _kept[conninfo] = db or dbapi.connect(conninfo, autocommit=True)
    return _kept[conninfo]
