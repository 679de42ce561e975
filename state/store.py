"""A pipeline's memory: its checkpoint, the generation born with it, and its dead letters, on the local disk."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

from ematix_flow.errors import NotBuilt
from ematix_flow.specs import PipelineSpec
from ematix_flow.state import durable
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import DEAD_LETTERS, file_name, state_of
from ematix_flow.state.lock import SingleWriter


class LocalStore:
    """Everything under one folder. Open while the pipeline runs; a second opener is refused."""

    def __init__(self, pipeline: str, folder: Path) -> None:
        durable.make(folder)
        self.folder = folder
        self._writer = SingleWriter(pipeline, folder)
        self.checkpoint = folder / "checkpoint"
        durable.make(self.checkpoint)
        self.generation = self._generation()
        self.dead_letters = DeadLetters(folder / DEAD_LETTERS)

    def scratch(self, name: str) -> Path:
        """A folder for rows that nobody reads yet, empty."""
        folder = self.folder / "staging" / file_name(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def remember(self, name: str, text: str) -> None:
        """Keep a fact that must live exactly as long as the checkpoint, such as an inferred schema."""
        durable.write(self.checkpoint / name, text)

    def recall(self, name: str) -> str | None:
        path = self.checkpoint / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    def save(self, batch: int) -> None:
        """Step 4 of the commit protocol: the plan of this batch outlives a power cut.

        Spark renames these files into place without flushing them. If a target showed the rows and the plan was lost,
        a different batch of the same number would be planned, and the fence would swallow it.
        """
        logs = [self.checkpoint / "offsets", *self.checkpoint.glob("sources/*")]
        for log in logs:
            for plan in (log / str(batch), log / f"{batch}.compact"):
                if plan.exists():
                    durable.sync(plan)
            durable.sync(log)

    def committed(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def close(self) -> None:
        self.dead_letters.close()
        self._writer.release()

    def _generation(self) -> str:
        known = self.recall("generation")
        if known is None:
            known = uuid.uuid4().hex
            self.remember("generation", known)
        return known


class MemoryStore(LocalStore):
    """Keeps nothing after exit; for tests."""

    def __init__(self, pipeline: str) -> None:
        super().__init__(pipeline, Path(tempfile.mkdtemp(prefix="ematix-flow-")))

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


def open_store(spec: PipelineSpec) -> LocalStore:
    match spec.state_store.kind:
        case "local":
            return LocalStore(spec.name, state_of(spec.name, spec.state_store.path))
        case "in_memory":
            return MemoryStore(spec.name)
        case kind:
            raise NotBuilt(f"state store {kind!r}", instead='use kind = "local"')
