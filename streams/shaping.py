"""What staging does alike in every batch, done once per start: the rows of the streaming plan become what the target
stages. Each step that a batch adds to its rows costs milliseconds of analysis, more than the rows of a small one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.base import Batch, Shaping, Staged
from ematix_flow.state.kernel import GONE
from ematix_flow.streams.envelope import ERROR, IS_GOOD
from ematix_flow.streams.observed import Seen, seen_among
from ematix_flow.streams.packing import NOTE
from ematix_flow.streams.tagging import KEEP

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_GOING = "_flow_going"


@dataclass(frozen=True)
class Shaped:
    """Rows that have `ERROR`, `NOTE` if an operator tells something, `_GOING` and the columns of the sink."""

    name: str
    """Of the target."""
    sink: Shaping
    columns: tuple[str, ...]

    def staged(self, rows: DataFrame, batch: Batch) -> Staged:
        return self.sink.stage_shaped(rows.where(_GOING).select(*self.columns), batch)

    def staged_here(self, rows: DataFrame, batch: Batch) -> tuple[Staged, pa.Table] | None:
        """Few rows, with all of them, bad ones too; None if they are more than the driver may take of Spark, because
        rows can be large."""
        try:
            found = _collected(rows)
        except Exception as error:
            if "maxResultSize" not in str(error):
                raise
            return None
        going = found.filter(found.column(_GOING)).select(list(self.columns))
        return self.sink.stage_shaped(going, batch), found


def shaped(
    name: str, sink: Shaping, rows: DataFrame, columns: Sequence[Column | str]
) -> tuple[Shaped, DataFrame] | None:
    """None if the rows of a repeated batch may be in other tasks. `columns` are those that the sink would be given."""
    from pyspark.sql import functions as F

    if not _keeps_tasks(rows._jdf.queryExecution().analyzed()):  # noqa: SLF001
        return None
    made = sink.shape(rows.select(*columns).schema)
    there = rows.columns
    going = IS_GOOD + (f" AND {KEEP}" if KEEP in there else "")
    going += f" AND NOT coalesce({GONE}, false)" if GONE in there else ""
    told = [name for name in (ERROR, NOTE) if name in there]
    result = rows.select(*told, F.expr(going).alias(_GOING), *[column.alias(name) for name, column in made.items()])
    return Shaped(name, sink, tuple(made)), result


def completed(seen: Seen, found: pa.Table) -> Seen:
    """With the errors and notes that were too many or too long to be collected with the counts."""
    if seen.complete and len(seen.notes) == seen.noted:
        return seen
    errors = found.column(ERROR).drop_null().to_pylist()
    notes = found.column(NOTE).drop_null().to_pylist() if NOTE in found.column_names else []
    return replace(seen, errors=tuple(errors), notes=tuple(notes))


def seen_again(rows: DataFrame, once: Seen) -> Seen:
    """What passes, by reading the rows once more; they have passed in part before, so that their counts are not right.
    What came to an operator was counted before it, and is not read again."""
    seen, kept = seen_among(rows), rows.where(_GOING).count()
    count = once.rows if once.inputs else seen.rows
    return replace(seen, rows=count, kept=kept, latest=once.latest, inputs=once.inputs)


def _collected(rows: DataFrame) -> pa.Table:
    """As `toArrow` does, which asks Spark for the schema and several settings before."""
    import pyarrow as pa

    return pa.Table.from_batches(rows._collect_as_arrow(empty_list_if_zero_records=False))  # type: ignore[operator]  # noqa: SLF001


def _keeps_tasks(plan: Any) -> bool:
    """Whether the rows of a repeated batch are in the same tasks again. Those of a source are, and so is what an
    operator makes of them, whose state is divided once and for all."""
    name = str(plan.nodeName())
    if "WithState" in name:
        return True
    children = plan.children()
    return name in _ROW_BY_ROW and all(_keeps_tasks(children.apply(n)) for n in range(children.size()))


_ROW_BY_ROW = frozenset(
    {
        "Project",
        "Filter",
        "Union",
        "CollectMetrics",
        "MapInArrow",
        "SubqueryAlias",
        "StreamingRelation",
        "StreamingRelationV2",
        "Generate",
        "ArrowEvalPython",
        "EventTimeWatermark",
        "View",
    }
)
