"""The bad rows of one batch, wherever they failed: counted by stage, and made into dead letters."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from ematix_flow.state.dead_letters import DeadLetter
from ematix_flow.streams.envelope import ERROR, IS_BAD, BadRow
from ematix_flow.streams.observed import Seen
from ematix_flow.streams.sources.base import KeepsLines
from ematix_flow.streams.sources.several import Sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LOOKED_UP_AT_ONCE = 100_000
# In the order in which a row meets them.
_STAGES = ("decode", "event_time", "transform", "late", "write")


@dataclass(frozen=True)
class _Place:
    """A place that bad rows passed: their errors, or the rows to read them from once more."""

    errors: tuple[str, ...]
    rows: DataFrame | None = None

    def __iter__(self) -> Iterator[str]:
        if self.rows is None:
            return iter(self.errors)
        return (row[0] for row in self.rows.where(IS_BAD).select(ERROR).toLocalIterator())

    def by_stage(self) -> dict[str, int]:
        from pyspark.sql import functions as F

        if self.rows is None:
            return Counter(BadRow.read(error).stage for error in self.errors)
        stage = F.get_json_object(ERROR, "$.stage")
        return dict(self.rows.where(IS_BAD).groupBy(stage).count().collect())


@dataclass
class SetAside:
    """Empty at the start of each batch."""

    _places: list[_Place] = field(default_factory=list)
    _counts: Counter[str] | None = None

    def seen(self, seen: Seen, rows: DataFrame) -> None:
        """Bad rows among those that passed."""
        if seen.bad:
            self._add(_Place(seen.errors, None if seen.complete else rows))

    def found(self, errors: Iterable[str]) -> None:
        """Bad rows that were looked for."""
        self._add(_Place(tuple(errors)))

    def _add(self, place: _Place) -> None:
        self._places.append(place)
        self._counts = None

    def __bool__(self) -> bool:
        return bool(self._places)

    def by_stage(self) -> dict[str, int]:
        if self._counts is None:
            self._counts = Counter()
            for place in self._places:
                self._counts.update(place.by_stage())
        return {stage: self._counts[stage] for stage in _STAGES if self._counts[stage]}

    def __iter__(self) -> Iterator[BadRow]:
        return (BadRow.read(error) for place in self._places for error in place)


def letters(pipeline: str, batch: int, sources: Sources, bad_rows: Iterable[BadRow]) -> Iterator[DeadLetter]:
    """Each with a position of its own, the same whenever the batch is repeated."""
    for bad, position, payload, form in _as_they_were(sources, placed(sources, batch, bad_rows)):
        source = sources.named(bad.source)
        arrived = source.arrived(bad.position) if source and bad.position else None
        yield DeadLetter(
            pipeline=pipeline,
            stage=bad.stage,
            error_code=bad.code,
            error=bad.message or (source.reason(bad.payload or b"") if source else ""),
            source=bad.source or sources.name,
            position=position,
            event_ts=bad.event_ts or arrived,
            payload_format=form,
            payload=payload,
            failed_at=datetime.now(UTC),
            key=bad.key,
            arrived=bad.arrived,
        )


def _as_they_were(
    sources: Sources, found: Iterator[tuple[BadRow, str]]
) -> Iterator[tuple[BadRow, str, bytes | None, str]]:
    """With the original bytes, where a source has to look for them, and what they are."""
    while some := list(islice(found, _LOOKED_UP_AT_ONCE)):
        wanted: dict[str, dict[str, bytes]] = {}
        for bad, position in some:
            if bad.payload is not None and _is_exact(sources, bad):
                wanted.setdefault(bad.source, {})[position] = bad.payload
        originals = {name: _originals(sources, name, read) for name, read in wanted.items()}
        for bad, position in some:
            source = sources.named(bad.source)
            usual = bad.payload, source.payload_format if source else "json"
            yield bad, position, *originals.get(bad.source, {}).get(position, usual)


def _originals(sources: Sources, name: str, read: dict[str, bytes]) -> dict[str, tuple[bytes, str]]:
    source = sources.named(name)
    return source.originals(read) if isinstance(source, KeepsLines) else {}


def placed(sources: Sources, batch: int, bad_rows: Iterable[BadRow]) -> Iterator[tuple[BadRow, str]]:
    """In the order of the source, as far as they are looked at together; Spark collects them in none. Where the source
    knows only the block of the file that a row lies in, rows are looked up in the file. What is not found there is told
    apart by its content, and equal rows are numbered."""
    equal: Counter[str] = Counter()
    rows = iter(bad_rows)
    while some := list(islice(rows, _LOOKED_UP_AT_ONCE)):
        wanted: dict[tuple[str, str], set[bytes]] = {}
        for bad in some:
            if not _is_exact(sources, bad):
                wanted.setdefault((bad.source, _file(bad)), set()).add(bad.payload or b"")
        lines = {
            (name, file): source.lines(file, payloads)
            for (name, file), payloads in wanted.items()
            if file and (source := sources.named(name))
        }
        found_at = []
        for bad in some:
            if _is_exact(sources, bad):
                found_at.append((bad, bad.position))
                continue
            digest = hashlib.sha256(bad.payload or (bad.message or "").encode()).hexdigest()[:12]
            name = f"{_file(bad) or f'batch {batch}'}#{digest}"
            found = lines.get((bad.source, _file(bad)), {}).get(bad.payload or b"", [])
            before, equal[name] = equal[name], equal[name] + 1
            if before < len(found):
                found_at.append((bad, f"{_file(bad)}#{found[before]}"))
            else:
                found_at.append((bad, f"{name}.{before}" if before else name))
        yield from sorted(found_at, key=lambda one: _in_order(one[1]))


def _in_order(position: str) -> list[str | int]:
    """Numbers in it as numbers: every other part is one."""
    return [int(part) if n % 2 else part for n, part in enumerate(re.split("([0-9]+)", position))]


def _is_exact(sources: Sources, bad: BadRow) -> bool:
    """A row that is not of one row of a source has no position."""
    source = sources.named(bad.source)
    return bool(bad.position) and source is not None and source.exact_positions


def _file(bad: BadRow) -> str:
    return bad.position.rpartition("#")[0]
