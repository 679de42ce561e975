"""A backfill: a bounded run over a range of the sources, beside the pipeline, whose own positions it does not touch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.config import resolve_connection
from ematix_flow.errors import UsageError
from ematix_flow.specs import PipelineSpec
from ematix_flow.specs.position import HOW, Position
from ematix_flow.state.store import Store
from ematix_flow.streams.sources.base import Ranged, StreamSource
from ematix_flow.streams.sources.opening import open_source, source_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Range:
    """From a position up to, and without, another one."""

    begin: str | None = None
    end: str | None = None

    @classmethod
    def of(cls, begin: str | None, end: str | None, spec: PipelineSpec, *, bounded: bool) -> Range | None:
        """Checked as far as it can be without asking a source; None if there is none."""
        if begin is None and end is None:
            return None
        if not bounded:
            raise UsageError("a range has an end, and this run has none", next_step="add --bounded")
        for option, text in (("--from", begin), ("--to", end)):
            try:
                Position.of(text or "latest")
            except ValueError:
                raise UsageError(f'{option}: found "{text}", which is no position', next_step=f"write {HOW}") from None
        if begin and end and Position.of(begin).is_after(Position.of(end)):
            raise UsageError(f"--from {begin} comes after --to {end}", next_step="exchange the two")
        known = spec.with_connections(resolve_connection)
        for name, source in zip(known.source_names, known.sources, strict=True):
            if not source_type(source).ranged:
                raise UsageError(
                    f"source {name!r} is of kind {source.kind}, of which no range can be read",
                    next_step="leave out --from and --to; only Kafka has them",
                )
        if spec.transform.join is not None and spec.transform.window is not None:
            raise UsageError(
                f"{spec.name} is a join and a window, two queries that cannot be filled back together",
                next_step="give a copy of the pipeline another name, and `start` to its sources",
            )
        return cls(begin, end)

    def __str__(self) -> str:
        return f"{self.begin or 'earliest'} to {self.end or 'latest'}"

    def of_sources(self, spec: PipelineSpec) -> PipelineSpec:
        start = {"start": self.begin or "earliest"}
        return spec.model_copy(update={"sources": tuple(one.model_copy(update=start) for one in spec.sources)})

    def opening(self, spec: PipelineSpec, index: int, store: Store, session: SparkSession) -> StreamSource:
        opened = open_source(spec, index, store, session)
        assert isinstance(opened, Ranged)
        opened.end_before(Position.of(self.end or "latest"))
        return opened
