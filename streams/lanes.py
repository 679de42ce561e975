"""The targets of many tables together: the changes of each go their own way through the steps of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ematix_flow.sinks.base import Batch
from ematix_flow.state.store import Store
from ematix_flow.streams.capturing import Changes
from ematix_flow.streams.change_tables import ChangeTable
from ematix_flow.streams.envelope import Origin
from ematix_flow.streams.observed import Seen, seen_among
from ematix_flow.streams.targets import Staging, Targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Abreast:
    """A batch as the targets of every table have staged it."""

    changes: Changes
    tables: Mapping[str, Staging]
    nameless: Seen | None
    """Bad envelopes that go to no table."""

    @property
    def looked_at(self) -> Iterator[tuple[Seen, DataFrame]]:
        for staging in self.tables.values():
            yield from staging.looked_at
        if self.nameless is not None and self.changes.nameless is not None:
            yield self.nameless, self.changes.nameless

    def rows(self, taken: int) -> dict[str, int]:
        return {name: rows for staging in self.tables.values() for name, rows in staging.rows(taken).items()}


class Lanes:
    """`Targets` for each table."""

    def __init__(self, origin: Origin, store: Store, on_refused: Callable[[list[str]], None]) -> None:
        self._origin, self._store, self._on_refused = origin, store, on_refused
        self._targets: dict[str, Targets] = {}
        self.changes: dict[str, Counter[str]] = {}
        """Of the latest batch, by table."""

    @property
    def counts(self) -> dict[str, Counter[str]]:
        return {name: counts for targets in self._targets.values() for name, counts in targets.counts.items()}

    def stage(self, batch: Batch, rows: Changes, taken: Callable[[], Seen], *, counted: bool) -> tuple[Abreast, Seen]:
        staged = {
            name: self._of(table).stage(batch, changes, taken, counted=counted)[0]
            for name, (table, changes) in rows.tables.items()
        }
        nameless = seen_among(rows.nameless) if rows.nameless is not None else None
        return Abreast(rows, staged, nameless), taken()

    def settled(self, batch: Batch, staging: Abreast) -> Abreast:
        """No table may have taken the batch when another one refuses a row of it."""
        alone = len(staging.tables) < 2
        settled = {name: self._targets[name].settled(batch, one, alone=alone) for name, one in staging.tables.items()}
        return replace(staging, tables=settled)

    def apply(self, batch: Batch, staging: Abreast) -> tuple[Abreast, set[str]]:
        applied: dict[str, Staging] = {}
        done: set[str] = set()
        self.changes = {}
        for name, one in staging.tables.items():
            applied[name], now = self._targets[name].apply(batch, one)
            done |= now
            if now:
                self.changes[name] = Counter(self._targets[name].changes)
        for name, skipped in staging.changes.skipped.items():
            if name in self.changes or name not in applied:
                self.changes.setdefault(name, Counter())["skipped"] += skipped
        return replace(staging, tables=applied), done

    def forget(self) -> None:
        for targets in self._targets.values():
            targets.forget()

    def _of(self, table: ChangeTable) -> Targets:
        if table.name not in self._targets:
            self._targets[table.name] = Targets(
                table.spec, table.sinks, self._origin, self._store, self._on_refused, table.name
            )
        return self._targets[table.name]
