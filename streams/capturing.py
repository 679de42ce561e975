"""Change data capture in a pipeline: the envelopes of a batch become changes of the rows of one table or many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from ematix_flow.cdc.changes import ONLY, TABLE, Seen, seen
from ematix_flow.sinks.base import Sink
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.home import file_name
from ematix_flow.state.store import Store
from ematix_flow.streams.change_columns import TableCapture, with_error
from ematix_flow.streams.change_tables import ChangeTable, UnlistedTable, found_table, listed_tables
from ematix_flow.streams.envelope import ERROR, IS_BAD, Origin
from ematix_flow.streams.held_back import HeldBack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Changes:
    """A batch as changes of rows."""

    tables: Mapping[str, tuple[ChangeTable, DataFrame]]
    """By source table; the tables of which there is something to say."""
    nameless: DataFrame | None
    """Bad envelopes that are of no table, or of one of which nothing is known yet."""
    skipped: Mapping[str, int]
    """Records that change nothing, by table: tombstones, which name none, and what the declaration ignores."""


class Capture:
    """Spark's rows are opened envelopes; each batch of them becomes changes of rows."""

    def __init__(self, spec: PipelineSpec, sinks: Mapping[str, Sink], store: Store, origin: Origin) -> None:
        assert spec.transform.cdc is not None
        self._spec, self._cdc, self._store, self._origin = spec, spec.transform.cdc, store, origin
        self._tables = {name: self._of(table) for name, table in listed_tables(spec, sinks).items()}
        self.back = HeldBack(self._cdc, store)

    def __call__(self, changes: DataFrame, batch: int) -> Changes:
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        changes = self.back.released(changes, batch)
        found = seen(changes)
        skipped = {table or ONLY: one.skipped for table, one in found.items() if one.skipped}
        named = {table: one for table, one in found.items() if table is not None and one.changes}
        self._meet(named)
        tables: dict[str, tuple[ChangeTable, DataFrame]] = {}
        lost = [with_error(changes.where(f"{TABLE} IS NULL"), self._origin)] if None in found else []
        for name, one in sorted(named.items()):
            capture, own = self._tables[name], changes.where(F.col(TABLE) == name)
            if capture.has_columns(one):
                tables[name] = capture.table, capture(own, one)
            else:
                lost.append(capture.without_columns(own, one))
        nameless = reduce(DataFrame.unionAll, [rows.select(ERROR).where(IS_BAD) for rows in lost]) if lost else None
        return Changes(tables, nameless, skipped)

    def _meet(self, named: Mapping[str, Seen]) -> None:
        """Tables that are not listed."""
        unlisted = sorted(named.keys() - self._tables.keys())
        if unlisted and self._cdc.unlisted == "fail":
            raise UnlistedTable(
                f"changes of {', '.join(unlisted)} came, and [transform.cdc.tables] lists "
                f"{', '.join(self._cdc.tables or ()) or 'none'}",
                next_step='list it with a table and keys, or set unlisted = "ignore" or "create"',
            )
        for name in unlisted:
            known = {one.table.name: one.table for one in self._tables.values()}
            self._tables[name] = self._of(found_table(self._spec, name, self._key(name, named[name]), known))

    def _key(self, name: str, found: Seen) -> tuple[str, ...]:
        """As the records of the table have it, also when later ones have none."""
        memory = f"key.{file_name(name)}.json"
        known = self._store.recall(memory)
        if known is None and found.keys:
            self._store.remember(memory, json.dumps(found.keys))
        return tuple(json.loads(known)) if known else found.keys

    def _of(self, table: ChangeTable) -> TableCapture:
        return TableCapture(table, self._cdc, self._store, self._origin)
