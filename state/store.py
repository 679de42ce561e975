"""A pipeline's memory while it runs: its checkpoint, the generation born with it, and its dead letters."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

from ematix_flow.specs import PipelineSpec
from ematix_flow.state import durable
from ematix_flow.state.checkpoint import remove_checksums
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters, Settled
from ematix_flow.state.definition import Definition, DefinitionChanged, differences
from ematix_flow.state.home import file_name
from ematix_flow.state.keeping import InVault, Keeper, OnDisk
from ematix_flow.state.lock import SingleWriter
from ematix_flow.state.memory import GENERATION, Memory, read_text
from ematix_flow.state.opening import folder_of, open_vault
from ematix_flow.state.swap import settle
from ematix_flow.state.vault import Vault

DEFINITION = "definition.json"

_log = logging.getLogger(__name__)


Publish = Callable[[str, str, int, Iterable[DeadLetter]], Iterator[DeadLetter]]
"""Takes the letters of a batch of a pipeline's generation, tells them elsewhere, and gives them on."""


class Store:
    """Everything under one folder, and what keeps it. Open while the pipeline runs; a second opener is refused."""

    def __init__(self, pipeline: str, folder: Path, vault: Vault | None = None, interval: float = 0) -> None:
        durable.make(folder)
        self.pipeline = pipeline
        """The name under which targets keep the fences of these batches."""
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self._writer = SingleWriter(pipeline, folder)
        try:
            settle(folder)
            durable.make(self.checkpoint)
            remove_checksums(self.checkpoint)
            self._keeper: Keeper = InVault(pipeline, folder, vault, interval) if vault else OnDisk(folder)
        except BaseException:
            self._writer.release()
            if vault is not None:
                vault.close()
            raise
        self.generation = self._generation()
        # At once, so that a second machine does not begin another generation, nor with less than a disk brings along.
        self._keeper.save(self.generation, None)
        self.dead_letters = self._dead_letters()
        self.publish: Publish | None = None
        """Also tells dead letters to others."""
        self._saved = -1

    def scratch(self, name: str) -> Path:
        """A folder for rows that nobody reads yet, empty."""
        folder = self.folder / "staging" / file_name(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    @property
    def handover(self) -> Path:
        """For what a stage gives to the next one, which is kept as the checkpoint is."""
        return self.checkpoint / "handover"

    @property
    def held(self) -> Path:
        """For changes whose transaction is not complete, which are kept as the checkpoint is."""
        return self.checkpoint / "held"

    def remember(self, name: str, text: str) -> None:
        """Write down a fact that must live exactly as long as the checkpoint, such as an inferred schema. The next
        `save` makes it durable."""
        durable.write(self.checkpoint / name, text)

    def recall(self, name: str) -> str | None:
        return read_text(self.checkpoint / name)

    def agree(self, definition: Definition) -> None:
        """Compare with the definition that the checkpoint was made for, and write it down."""
        known = json.loads(self.recall(DEFINITION) or "{}")
        now = {"fixed": definition.fixed, "free": definition.free}
        if known == now:
            return
        if known and any((self.checkpoint / "offsets").glob("[0-9]*")):
            if changed := differences(known["fixed"], definition.fixed):
                raise DefinitionChanged(self.pipeline, changed)
            accepted = differences(known["free"], definition.free)
            _log.info("definition changed", extra={"pipeline": self.pipeline, "changes": "; ".join(accepted)})
        self.remember(DEFINITION, json.dumps(now))

    @property
    def buckets(self) -> int | None:
        """How many parts the state of the operator was divided into, if there is one."""
        fixed = json.loads(self.recall(DEFINITION) or "{}").get("fixed", {})
        return int(fixed["buckets"]) if "buckets" in fixed else None

    def save(self, batch: int) -> None:
        """Step 4 of the commit protocol: the plan of this batch, and the state it leaves, outlive whatever happens now.

        If a target showed the rows and the plan was lost, a different batch of the same number would be planned, and
        the fence would swallow it.
        """
        self._keeper.save(self.generation, batch)
        self._saved = batch

    def check(self) -> None:
        """Before a target shows anything: this process still is the one that runs the pipeline."""
        self._keeper.check()

    def adopt(self, generation: str) -> None:
        """Go on from another checkpoint, complete in `checkpoint.new`, in which `generation` is written down."""
        self._keeper.adopt(generation)
        self.generation = generation

    def divert(self, letters: Iterable[DeadLetter]) -> None:
        """Step 6 of the commit protocol, for every batch: the rows of it that failed, often none."""
        self.dead_letters.put(
            self.publish(self.pipeline, self.generation, self._saved, letters) if self.publish else letters
        )

    def committed(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def close(self) -> None:
        self.dead_letters.close()
        self._keeper.close(self.generation)
        self._writer.release()

    def _dead_letters(self) -> DeadLetters:
        return self._keeper.dead_letters(self.generation)

    def _generation(self) -> str:
        known = self.recall(GENERATION)
        if known is None:
            known = uuid.uuid4().hex
            self.remember(GENERATION, known)
        return known


class ReplayStore(Store):
    """Memory of the replays of a pipeline, which may run beside it: a checkpoint, a lock and fences of their own, the
    pipeline's dead letters, and an inbox that holds the letters of one replay at a time."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._max_attempts = spec.dlq_max_attempts
        self.settled = Settled()
        self._of = Memory(spec.name, spec.state_store)
        super().__init__(
            f"{spec.name} (replay)",
            self._of.folder / "replay",
            open_vault(f"{spec.name} (replay)", spec.state_store),
            _seconds(spec),
        )
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
        known = super().recall(name)
        return self._of.recall(name) if known is None and name != GENERATION else known

    def agree(self, definition: Definition) -> None:
        """Its batches are letters, not positions of the source."""

    def divert(self, letters: Iterable[DeadLetter]) -> None:
        """The rows that failed again; all others of the replay are in the targets now."""
        replay = self.replay
        assert replay is not None
        self.settled += self.dead_letters.settle(replay, letters, self._max_attempts)

    def finish(self) -> None:
        """The replay's batch is committed. Its letters go only when this is sure, because Spark asks for them again
        if it finds its note lost."""
        assert self.dead_letters.open_replay() is None, "divert has settled every letter"
        self._keeper.save(self.generation, None)
        for spooled in self.inbox.iterdir():
            spooled.unlink()

    def close(self) -> None:
        super().close()
        self._of.close()

    def _dead_letters(self) -> DeadLetters:
        return self._of.dead_letters()


class StageStore(Store):
    """Memory of what runs for a pipeline, but has its own batches, such as a stage before the last one: a checkpoint,
    a lock and fences of its own, and the pipeline's dead letters, whose store must have been opened before."""

    def __init__(self, spec: PipelineSpec, stage: str) -> None:
        self._of = Memory(spec.name, spec.state_store)
        name = f"{spec.name} ({stage})"
        super().__init__(name, self._of.folder / file_name(stage), open_vault(name, spec.state_store), _seconds(spec))

    def close(self) -> None:
        super().close()
        self._of.close()

    def _dead_letters(self) -> DeadLetters:
        return self._of.dead_letters()


class MemoryStore(Store):
    """Keeps nothing after exit; for tests."""

    def __init__(self, pipeline: str) -> None:
        super().__init__(pipeline, Path(tempfile.mkdtemp(prefix="ematix-flow-")))

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


def open_store(spec: PipelineSpec) -> Store:
    if spec.state_store.kind == "in_memory":
        return MemoryStore(spec.name)
    vault = open_vault(spec.name, spec.state_store)
    return Store(spec.name, folder_of(spec.name, spec.state_store), vault, _seconds(spec))


def open_stage_store(spec: PipelineSpec, stage: str) -> Store:
    return MemoryStore(f"{spec.name} ({stage})") if spec.state_store.kind == "in_memory" else StageStore(spec, stage)


def open_beside(spec: PipelineSpec, what: str) -> Store:
    """For a run beside the pipeline, which need not have run before."""
    if spec.state_store.kind == "in_memory":
        return MemoryStore(f"{spec.name} ({what})")
    with closing(Memory(spec.name, spec.state_store)) as memory:
        is_there = memory.recall(GENERATION) is not None
    if not is_there:
        # Its dead letters have no place before.
        open_store(spec).close()
    return StageStore(spec, what)


def _seconds(spec: PipelineSpec) -> float:
    return spec.state_store.checkpoint_interval_ms / 1000
