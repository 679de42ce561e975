"""Which line of Spark's notes of offsets is of which source: they stand in the order of the query's plan, without
names, and two sources may read the same topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.state.memory import read_text
from ematix_flow.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMED = "ematix.flow.source"
"""Option by which a source tells the plan its name. Spark ignores it."""
_NOTE = "source_order.json"


def note_order(rows: DataFrame, store: Store) -> None:
    """Kept with the checkpoint, which is looked at before there is a plan again."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    streams = [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.isStreaming()]
    names = [leaf.extraOptions().get(NAMED) if leaf.nodeName() == "StreamingRelationV2" else None for leaf in streams]
    text = json.dumps(names)
    if any(names) and store.recall(_NOTE) != text:
        store.remember(_NOTE, text)


def place_of(checkpoint: Path, source: str) -> int | None:
    """None for a checkpoint of before there was a note."""
    order = json.loads(read_text(checkpoint / _NOTE) or "[]")
    return order.index(source) if source in order else None
