"""A spec becomes one StreamingQuery."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.cdc.changes import opened
from ematix_flow.sinks.ahead import AHEAD
from ematix_flow.sinks.base import Sink
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.kernel import Operator
from ematix_flow.state.store import Store
from ematix_flow.streams.branches import Branch, branches_of, in_one_shape, origin_of, together
from ematix_flow.streams.calling import with_each_batch
from ematix_flow.streams.capturing import Capture
from ematix_flow.streams.envelope import ERROR, OURS, Origin, as_json_bytes, with_itself_as_payload
from ematix_flow.streams.failures import spark_words
from ematix_flow.streams.handover import with_event_ts
from ematix_flow.streams.joining import join_inputs, join_operator_of
from ematix_flow.streams.named_sources import (
    is_over_names,
    one_select_each,
    over_tables,
    side_by_side,
    under_each_other,
)
from ematix_flow.streams.observed import counted, observed
from ematix_flow.streams.operators import window_operator_of
from ematix_flow.streams.sources.several import Sources
from ematix_flow.streams.stateful import input_of, stateful
from ematix_flow.streams.ticks import Ticks, ticks_of
from ematix_flow.streams.transform import STREAM, BadSql, SqlTransform, Transformed, refuse_commands, stream_names

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BatchTransform = Callable[["DataFrame", Mapping[str, "DataFrame"]], "DataFrame"]
"""Rows of a batch become other rows."""

_CALL_SITE = ("callSite.short", "callSite.long")


@dataclass(frozen=True)
class Plan:
    """The streaming rows, bad ones tagged, and the SQL that is still to be applied to the good rows of each batch."""

    rows: DataFrame
    origin: Origin
    """Of any of the rows."""
    batch_transform: BatchTransform | None = None
    operator: Operator | None = None
    """Each look at the rows of a batch would run it once more."""
    ticks: tuple[Ticks, ...] = ()
    """Of each of its inputs: they move its watermark when no row does."""
    capture: Capture | None = None
    """Makes changes of tables of the rows of a batch."""
    one_by_one: bool = False
    """It is known that a target takes rows only so."""

    @property
    def is_row_by_row(self) -> bool:
        """The rows go to the targets as they are."""
        return self.operator is None and self.batch_transform is None and self.capture is None

    @property
    def is_materialised(self) -> bool:
        """What is looked at twice is read and counted twice, unless it is kept."""
        return self.operator is not None or self.capture is not None


@dataclass(frozen=True)
class _Transformed:
    branches: list[Branch]
    batch_transform: BatchTransform | None = None


def plan(
    spec: PipelineSpec,
    sources: Sources,
    session: SparkSession,
    store: Store,
    sinks: Mapping[str, Sink],
    *,
    one_by_one: bool = False,
) -> Plan:
    """Read, decode, transform, operate, count. Many rows may be one on their way to the only target, unless it has to
    have them `one_by_one`."""
    only = next(iter(sinks.values())) if len(sinks) == 1 and not one_by_one else None
    refusing = any(sink.capabilities.may_refuse(one_by_one=one_by_one) for sink in sinks.values())
    branches = branches_of(spec, sources, session, only, refusing=refusing)
    if spec.transform.join is not None:
        return _joined(spec, branches, session, store)
    done = _transformed(spec, branches)
    origin = origin_of(branches)
    if spec.transform.cdc is not None:
        capture = Capture(spec, sinks, store, origin)
        # Opened before they are kept, because the envelopes of a batch are looked at more than once.
        rows = observed(opened(together(done.branches), spec.transform.cdc))
        return Plan(rows, origin, capture=capture)
    if spec.transform.window is None:
        if done.batch_transform is not None and AHEAD in done.branches[0].rows.columns:
            return plan(spec, sources, session, store, sinks, one_by_one=True)
        rows = observed(together(done.branches))
        return Plan(rows, origin, done.batch_transform)
    if done.batch_transform is not None:
        raise _needs_a_batch()
    operator = window_operator_of(spec, done.branches, store)
    ticks = ticks_of(branches, operator, store)
    inputs = [
        input_of(counted(branch.rows, number), operator, branch.origin, ticks[number].read(session))
        for number, branch in enumerate(done.branches)
    ]
    return Plan(observed(stateful(inputs, operator, origin)), origin, operator=operator, ticks=ticks)


def _joined(spec: PipelineSpec, branches: Sequence[Branch], session: SparkSession, store: Store) -> Plan:
    """A SELECT is over the joined rows. What it makes of them is no row of a source, so that a row on which it fails is
    kept as it came from the join."""
    join = spec.transform.join
    assert join is not None
    operator = join_operator_of(spec, branches, store)
    ticks = ticks_of(branches, operator, store)
    inputs = join_inputs(join, branches, [one.read(session) for one in ticks])
    rows = stateful(inputs, operator, origin_of(branches))
    origin, batch_transform = Origin(""), None
    if spec.transform.sql is not None:
        if spec.transform.on_error != "drop":
            rows, origin = with_itself_as_payload(rows, operator.output.names), Origin("", as_json_bytes)
        done = _transformed(spec, [Branch(rows, tuple(operator.output.names), origin)])
        if done.batch_transform is not None and spec.transform.window is not None:
            raise _needs_a_batch()
        rows, batch_transform = done.branches[0].rows, done.batch_transform
    if spec.transform.window is not None:
        rows = with_event_ts(rows)
    return Plan(observed(rows), origin, batch_transform, operator, ticks)


def _needs_a_batch() -> BadSql:
    return BadSql(
        "the SELECT needs a whole batch at once, and what feeds windows must work row by row",
        next_step="leave grouping, sorting and lookups to the window, or to a pipeline of its own",
    )


def _transformed(spec: PipelineSpec, branches: Sequence[Branch]) -> _Transformed:
    sql, dialect = spec.transform.sql, spec.transform.dialect
    if sql is None:
        return _Transformed(in_one_shape(branches))
    if dialect == "spark":
        refuse_commands(sql)
    sources = [branch.origin.source for branch in branches]
    if len(branches) > 1 and is_over_names(sql, dialect, sources):
        selects = None if spec.transform.lookups else one_select_each(sql, dialect, sources)
        if selects is not None:
            done = _row_by_row([selects[source] for source in sources], "spark", branches)
            if done is not None:
                return _Transformed(under_each_other(done, first=next(iter(selects))))
        return _over_tables(spec, branches)
    shaped, names = in_one_shape(branches), stream_names(spec)
    if not spec.transform.lookups:
        done = _row_by_row([sql] * len(shaped), dialect, shaped, names)
        if done is not None:
            return _Transformed(done)
    transform = SqlTransform(sql, dialect, shaped[0].visible, origin_of(branches), names)

    def over_a_batch(good: DataFrame, lookups: Mapping[str, DataFrame]) -> DataFrame:
        return _with_room_for_errors(_understood(lambda: transform(good, lookups)))

    return _Transformed(shaped, over_a_batch)


def _row_by_row(
    selects: Sequence[str], dialect: str, branches: Sequence[Branch], names: tuple[str, ...] = (STREAM,)
) -> list[Branch] | None:
    """The SELECT of each branch; None if one needs a whole batch. A mistake is found now, not in the first batch."""
    done = []
    for sql, branch in zip(selects, branches, strict=True):
        transform = SqlTransform(sql, dialect, branch.visible, branch.origin, names)
        transformed = _understood(partial(transform, branch.rows, {}))
        if not transformed.row_wise:
            return None
        visible = tuple(name for name in transformed.rows.columns if not name.startswith(OURS))
        done.append(replace(branch, rows=transformed.rows, visible=visible))
    return done


def _over_tables(spec: PipelineSpec, branches: Sequence[Branch]) -> _Transformed:
    sql, dialect = spec.transform.sql or "", spec.transform.dialect
    apart = side_by_side(branches)

    def over_a_batch(good: DataFrame, lookups: Mapping[str, DataFrame]) -> DataFrame:
        def selected() -> Transformed:
            rows = over_tables(sql, dialect, branches, good, lookups)
            return Transformed(rows, tagged=False, row_wise=False)

        return _with_room_for_errors(_understood(selected))

    if not spec.transform.lookups:
        over_a_batch(together(apart), {})
    return _Transformed(apart, over_a_batch)


def start(
    spec: PipelineSpec, rows: DataFrame, run: Callable[[DataFrame, int], None], store: Store, *, bounded: bool
) -> StreamingQuery:
    checkpoint = str(store.checkpoint)
    writer = rows.writeStream.queryName(store.pipeline).option("checkpointLocation", checkpoint)
    writer = with_each_batch(writer, run)
    if bounded:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{spec.trigger_interval_ms or 0} milliseconds")
    with _called_from(store.pipeline, rows.sparkSession.sparkContext):
        return writer.start()


@contextmanager
def _called_from(name: str, context: SparkContext) -> Iterator[None]:
    """Threads that begin here know where they were called from. Otherwise Spark looks through its stack for each of the
    dozens of steps of a batch, which takes a tenth of the time in which it prepares a small one."""
    for form in _CALL_SITE:
        context.setLocalProperty(form, name)
    try:
        yield
    finally:
        for form in _CALL_SITE:
            context.setLocalProperty(form, None)  # type: ignore[arg-type]  # which takes it away


def _understood(transformed: Callable[[], Transformed]) -> Transformed:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return transformed()
    except (AnalysisException, ParseException) as error:
        said = re.sub(rf"(?:, )?`[^`]*{OURS}\w*`", "", spark_words(error)[1])
        words = f"Spark refuses the transform: {said}"
        raise BadSql(words, next_step="correct the transform") from error


def _with_room_for_errors(transformed: Transformed) -> DataFrame:
    from pyspark.sql import functions as F

    rows = transformed.rows
    return rows if transformed.tagged else rows.withColumn(ERROR, F.lit(None).cast("string"))
