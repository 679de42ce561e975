"""What a pipeline remembers, for whoever looks at it from outside, also while it runs; nothing here needs its lease."""

from __future__ import annotations

from pathlib import Path

from ematix_flow.specs import StateStore
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import DEAD_LETTERS
from ematix_flow.state.opening import folder_of, open_vault

GENERATION = "generation"


class Memory:
    def __init__(self, pipeline: str, store: StateStore) -> None:
        self.folder = folder_of(pipeline, store)
        self.vault = open_vault(pipeline, store)

    @property
    def place(self) -> str:
        """For a person."""
        return self.vault.place if self.vault else str(self.folder)

    def recall(self, name: str) -> str | None:
        """A fact that the pipeline wrote down beside its checkpoint."""
        if self.vault is None:
            return read_text(self.folder / "checkpoint" / name)
        held = self.vault.latest()
        if held is None or name not in held.files:
            return None
        ((_, content),) = self.vault.read(held.generation, [name])
        return content.decode()

    def dead_letters(self) -> DeadLetters:
        """Looking creates nothing: of a pipeline that never ran, there are none."""
        generation, file = self.recall(GENERATION), self.folder / DEAD_LETTERS
        if self.vault is not None and generation is not None:
            return self.vault.dead_letters(generation)
        return DeadLetters(file if self.vault is None and file.exists() else Path(":memory:"), generation or "")

    def close(self) -> None:
        if self.vault is not None:
            self.vault.close()


def read_text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
