"""The mark that a target carries so that a batch is applied to it once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fence:
    """One row per (pipeline, target): the newest batch applied there, and the checkpoint it came from.

    A generation is born with a checkpoint. A restored checkpoint keeps it, so what was applied is not applied again;
    a deliberately reset pipeline has a new one, so its batches count from zero and are applied.
    """

    pipeline: str
    target: str
    generation: str
    batch: int

    def passed(self, generation: str | None, batch: int | None) -> bool:
        """Whether the mark found in the target says that this batch is there already."""
        return generation == self.generation and batch is not None and batch >= self.batch
