"""A run that reads all of its source again, where Spark would only follow it from where the last run ended."""

from __future__ import annotations

from contextlib import closing

from ematix_flow.specs import PipelineSpec
from ematix_flow.state.batches import Batches
from ematix_flow.state.memory import Memory
from ematix_flow.state.tending import at_rest


def begin_anew(spec: PipelineSpec) -> None:
    """With an empty checkpoint, unless the last run did not finish: then this one finishes it."""
    if spec.state_store.kind == "in_memory" or not any(source.snapshot for source in spec.sources):
        return
    with closing(Memory(spec.name, spec.state_store)) as memory:
        batches = Batches.of(memory)
        if batches.planned and batches.planned[-1] in batches.committed:
            with at_rest(spec.name, memory) as resting:
                resting.begin_anew()
