"""A pipeline's memory: its checkpoint, the generation born with it, and its dead letters, on the local disk."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path

from ematix_flow.errors import NotBuilt
from ematix_flow.specs import PipelineSpec
from ematix_flow.state import durable
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters, Settled
from ematix_flow.state.home import DEAD_LETTERS, file_name, state_of
from ematix_flow.state.lock import SingleWriter

_GENERATION = "generation"


class LocalStore:
    """Everything under one folder. Open while the pipeline runs; a second opener is refused."""

    def __init__(self, pipeline: str, folder: Path) -> None:
        durable.make(folder)
        self.pipeline = pipeline
        """The name under which targets keep the fences of these batches."""
        self.folder = folder
        self._writer = SingleWriter(pipeline, folder)
        self.checkpoint = folder / "checkpoint"
        durable.make(self.checkpoint)
        self.generation = self._generation()
        self.dead_letters = self._dead_letters()

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
        return _read(self.checkpoint / name)

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

    def divert(self, letters: Iterable[DeadLetter]) -> None:
        """Step 6 of the commit protocol, for every batch: the rows of it that failed, often none."""
        self.dead_letters.put(letters)

    def committed(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def close(self) -> None:
        self.dead_letters.close()
        self._writer.release()

    def _dead_letters(self) -> DeadLetters:
        return DeadLetters(self.folder / DEAD_LETTERS, self.generation)

    def _generation(self) -> str:
        known = self.recall(_GENERATION)
        if known is None:
            known = uuid.uuid4().hex
            self.remember(_GENERATION, known)
        return known


class ReplayStore(LocalStore):
    """Memory of the replays of a pipeline, which may run beside it: a checkpoint, a lock and fences of their own, the
    pipeline's dead letters, and an inbox that holds the letters of one replay at a time."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._of = state_of(spec.name, spec.state_store.path)
        self._max_attempts = spec.dlq_max_attempts
        self.settled = Settled()
        super().__init__(f"{spec.name} (replay)", self._of / "replay")
        self.inbox = self.folder / "inbox"
        durable.make(self.inbox)

    @property
    def replay(self) -> str | None:
        """The replay that is not finished, if there is one: a process may have died in it at any point."""
        spooled = next(self.inbox.glob("*.parquet"), None)
        return spooled.stem if spooled else self.dead_letters.open_replay()

    def spool(self, replay: str) -> Path:
        return self.inbox / f"{replay}.parquet"

    def recall(self, name: str) -> str | None:
        """What the pipeline has fixed, such as the columns of its input, holds for its letters, too."""
        if name == _GENERATION:
            return super().recall(name)
        return _read(self._of / "checkpoint" / name)

    def divert(self, letters: Iterable[DeadLetter]) -> None:
        """The rows that failed again; all others of the replay are in the targets now."""
        replay = self.replay
        assert replay is not None
        self.settled += self.dead_letters.settle(replay, letters, self._max_attempts)

    def finish(self) -> None:
        """The replay's batch is committed. Its letters go only when this is sure, because Spark asks for them again
        if it finds its note lost."""
        assert self.dead_letters.open_replay() is None, "divert has settled every letter"
        commits = self.checkpoint / "commits"
        for path in (*commits.glob("[0-9]*"), commits):
            durable.sync(path)
        for spooled in self.inbox.iterdir():
            spooled.unlink()

    def _dead_letters(self) -> DeadLetters:
        return DeadLetters(self._of / DEAD_LETTERS, _read(self._of / "checkpoint" / _GENERATION) or "")


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


def open_replay_store(spec: PipelineSpec) -> ReplayStore:
    if spec.state_store.kind != "local":
        raise NotBuilt(f"replay from state store {spec.state_store.kind!r}", instead='use kind = "local"')
    return ReplayStore(spec)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
