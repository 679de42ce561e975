"""A join that is followed by a window: two queries, each with its own checkpoint and fences, run as one pipeline."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.result import RunResult
from ematix_flow.sinks.base import Sink
from ematix_flow.specs import PipelineSpec, Watermark
from ematix_flow.state.store import Store, open_stage_store, open_store
from ematix_flow.streams.handover import HandedOver, HandOver, source_in, target_in
from ematix_flow.streams.run import Ending, IsIdle, Watching, open_sinks, run_stage
from ematix_flow.streams.runner import BatchReport
from ematix_flow.streams.sources.opening import open_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOIN = "join"


def run_stages(
    spec: PipelineSpec, ending: Ending, watching: Watching, asked: threading.Event, spark: SparkSession | None
) -> RunResult:
    with closing(open_store(spec)) as last, closing(open_stage_store(spec, _JOIN)) as first:
        stages = _Stages(spec, first, last, ending, watching, asked, spark)
        return stages.one_after_the_other() if ending.bounded else stages.side_by_side()


class _Stages:
    def __init__(
        self,
        spec: PipelineSpec,
        first: Store,
        last: Store,
        ending: Ending,
        watching: Watching,
        asked: threading.Event,
        spark: SparkSession | None,
    ) -> None:
        self._spec, self._first, self._last = spec, first, last
        self._ending, self._watching, self._asked, self._spark = ending, watching, asked, spark
        self._idle: dict[str, IsIdle] = {}

    def one_after_the_other(self) -> RunResult:
        joined = self.join()
        return joined if self._asked.is_set() else _both(joined, self.window())

    def side_by_side(self) -> RunResult:
        """Until both are told to stop, or one of them fails, which stops the other."""
        done: list[RunResult] = []
        failed: list[FlowError] = []

        def join() -> None:
            try:
                done.append(self.join())
            except FlowError as error:
                failed.append(error)
            finally:
                self._asked.set()

        joining = threading.Thread(target=join, name=f"{self._spec.name} join")
        joining.start()
        try:
            windowed = self.window()
        finally:
            self._asked.set()
            joining.join()
        if failed:
            raise failed[0]
        return _both(done[0], windowed)

    def join(self) -> RunResult:
        """The window stays in the declaration, so that rows get what it needs of them."""
        spec, join = self._spec, self._spec.transform.join
        assert join is not None
        stage = spec.model_copy(update={"targets": (target_in(self._first),)})
        (name,) = stage.target_names
        sinks: dict[str, Sink] = {name: HandOver(self._first, name, join)}
        return run_stage(
            stage, self._first, open_source, sinks, self._ending, self._watched(_JOIN), self._asked, self._spark
        )

    def window(self) -> RunResult:
        spec = self._spec
        transform = spec.transform.model_copy(update={"join": None, "sql": None, "lookups": {}})
        # How late rows may be is in the horizon that comes with them.
        watermark = Watermark(source_idleness_ms=spec.watermark.source_idleness_ms)
        stage = spec.model_copy(
            update={"sources": (source_in(self._first),), "transform": transform, "watermark": watermark}
        )
        return run_stage(
            stage,
            self._last,
            lambda *_: HandedOver(self._first),
            open_sinks(spec),
            self._ending,
            self._watched("window"),
            self._asked,
            self._spark,
        )

    def _watched(self, stage: str) -> Watching:
        def on_batch(report: BatchReport) -> None:
            """What goes from one stage to the other is neither read nor written by the pipeline."""
            inner = {"written": {}, "pipeline": f"{report.pipeline} ({_JOIN})"} if stage == _JOIN else {"consumed": 0}
            self._watching.on_batch(replace(report, **inner, operator=stage))

        def on_start(is_idle: IsIdle) -> None:
            self._idle[stage] = is_idle
            self._watching.on_start(lambda: all(idle() for idle in self._idle.values()))

        return Watching(on_batch, self._watching.on_step, on_start)


def _both(joined: RunResult, windowed: RunResult) -> RunResult:
    def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
        return dict(Counter(one) + Counter(other))

    return replace(
        windowed,
        batches=joined.batches + windowed.batches,
        rows_consumed=joined.rows_consumed,
        late_rows=added(joined.late_rows, windowed.late_rows),
        dlq_rows=added(joined.dlq_rows, windowed.dlq_rows),
        dropped_rows=added(joined.dropped_rows, windowed.dropped_rows),
        duration_seconds=joined.duration_seconds + windowed.duration_seconds,
    )
