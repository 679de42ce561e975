"""Rows of a partition into a PostgreSQL table by binary COPY."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_kept: dict[str, Any] = {}


def ingest(conninfo: str, schema: str, table: str, rows: pa.RecordBatchReader) -> str:
    """One COPY, so that all rows arrive or none."""
    from adbc_driver_manager import Error

    try:
        with _connected(conninfo).cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="append", db_schema_name=schema)
    except Error as error:
        return str(error)
    return ""


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
