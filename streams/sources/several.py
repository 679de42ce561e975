"""The sources of a pipeline together: which one a bad row came from is told by the name that it carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ematix_flow.streams.sources.base import CountsAhead, Ranged, StreamSource, TakesAll


class Sources(Sequence[StreamSource]):
    def __init__(self, opened: Sequence[StreamSource]) -> None:
        self._opened = tuple(opened)
        self._by_name = {source.origin.source: source for source in self._opened}

    def __getitem__(self, place: int) -> StreamSource:  # type: ignore[override]
        return self._opened[place]

    def __len__(self) -> int:
        return len(self._opened)

    def __iter__(self) -> Iterator[StreamSource]:
        return iter(self._opened)

    @property
    def name(self) -> str:
        """Of all of them."""
        return ", ".join(self._by_name)

    def named(self, name: str) -> StreamSource | None:
        """None for a row that is not of one source alone."""
        return self._opened[0] if len(self) == 1 else self._by_name.get(name)

    def rows_of(self, batch: int) -> int | None:
        """How many rows a planned batch has, if all of them know."""
        counts = [source.rows_of(batch) if isinstance(source, CountsAhead) else None for source in self._opened]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def are_over(self, batch: int) -> bool:
        """Whether ranges are read, and none has more after a planned batch."""
        return all(isinstance(source, Ranged) and source.is_over(batch) for source in self._opened)

    @property
    def take_all(self) -> bool:
        """Whether the first batch that a bounded run plans is the only one."""
        return all(isinstance(source, TakesAll) and source.takes_all for source in self._opened)

    def release(self, batch: int) -> None:
        for source in self._opened:
            source.release(batch)
