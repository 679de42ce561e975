"""The rows of a target as a test compares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ematix_flow.sinks.ordering import ROW_HASH
from ematix_flow.sinks.tables import quoted
from ematix_flow.specs import Target
from ematix_flow.table import VALID_FROM


def read_table(target: Target, file: Path) -> list[dict[str, Any]]:
    """In order of the columns from left to right; a history in order of key and `valid_from`."""
    import duckdb

    assert target.table is not None
    table = f"{quoted(target.table.schema or 'main')}.{quoted(target.table.name)}"
    order = ", ".join(map(quoted, (*target.merge_keys, VALID_FROM))) if target.mode == "scd2" else "ALL"
    with duckdb.connect(str(file), read_only=True) as db:
        db.execute("SET TimeZone = 'UTC'")
        try:
            every = [column[0] for column in db.execute(f"SELECT * FROM {table} LIMIT 0").description]
        except duckdb.CatalogException:
            return []  # the first batch failed before there was a table
        columns = [column for column in every if column not in _unforeseeable(target)]
        rows = db.execute(f"SELECT {', '.join(map(quoted, columns))} FROM {table} ORDER BY {order}").fetchall()
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _unforeseeable(target: Target) -> set[str]:
    """Columns that the product adds and whose values no test can know: when and by which batch a row was written, and
    its hash."""
    definition = target.table.definition if target.table else None
    audit = {column.name for column in definition.audit_columns()} if definition else set()
    return audit | ({ROW_HASH} if target.mode == "scd2" else set())
