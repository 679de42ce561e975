"""A run that reads all of its source again: for sources that Spark would only follow from where the last run ended."""

from __future__ import annotations

from contextlib import closing

from ematix_flow.specs import PipelineSpec
from ematix_flow.specs.fields import DELTA_KINDS
from ematix_flow.state.batches import Batches
from ematix_flow.state.memory import Memory
from ematix_flow.state.tending import at_rest


def reads_anew(spec: PipelineSpec) -> bool:
    """A Delta table whose rows are matched or replaced is read as it is now, as a table of a database is. What is
    appended, or read as changes, is read once."""
    followed = any(source.kind not in DELTA_KINDS or source.change_feed for source in spec.sources)
    return not followed and all(target.mode != "append" for target in spec.targets)


def begin_anew(spec: PipelineSpec) -> None:
    """Unless the last run did not finish: then this one finishes it."""
    with closing(Memory(spec.name, spec.state_store)) as memory:
        batches = Batches.of(memory)
        if batches.planned and batches.planned[-1] in batches.committed:
            with at_rest(spec.name, memory) as resting:
                resting.begin_anew()
