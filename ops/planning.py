"""What the next run of a pipeline would do, from its declaration, its state and its input, without starting it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ematix_flow.config import resolve_connection
from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.ops.output import counted
from ematix_flow.ops.state import memory_of, size_text, state_of
from ematix_flow.secrets import expanded
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.batches import Batches
from ematix_flow.state.definition import Definition, differences
from ematix_flow.state.memory import Memory
from ematix_flow.state.store import DEFINITION
from ematix_flow.streams.sources.listing import is_pattern, visible_files


@dataclass(frozen=True)
class Planned:
    begins: str
    """Where the next run goes on."""
    changes: tuple[str, ...]
    """What is declared differently than in the last run, and may be."""
    refused: tuple[str, ...]
    """What is declared differently and cannot be, as long as the checkpoint is there."""
    cost: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        return {
            "begins": self.begins,
            "changes": list(self.changes),
            "refused": list(self.refused),
            "cost": list(self.cost),
        }

    def rows(self) -> list[list[str]]:
        """For a table of two columns."""
        rows = [["next run", self.begins]]
        rows += [["changed", text] for text in self.changes]
        rows += [["refused", text] for text in self.refused]
        return rows + [["cost", text] for text in self.cost]


def planned(spec: PipelineSpec) -> Planned:
    if spec.state_store.kind == "in_memory":
        return Planned("begins at the start; nothing is kept after it", (), (), tuple(_cost(spec, frozenset())))
    if spec.transform.join is not None and spec.transform.window is not None:
        # The state is that of the second query, which reads what the first one hands over.
        return Planned(_begins(spec), (), (), tuple(_cost(spec, None)))
    with closing(memory_of(spec)) as memory:
        changes, refused = _compared(spec, memory)
        done = _files_read(Batches.of(memory))
    return Planned(_begins(spec), changes, refused, tuple(_cost(spec, done)))


def _begins(spec: PipelineSpec) -> str:
    state = state_of(spec)
    if state.planned is None:
        return f"begins at the start: there is no state in {state.place}"
    if state.planned == state.committed:
        return f"goes on after batch {state.committed}"
    return f"repeats batch {state.planned}, which was planned and not committed, then goes on"


def _compared(spec: PipelineSpec, memory: Memory) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What may have changed, and what may not. What an operator keeps depends on the columns, which Spark has to
    find."""
    known = json.loads(memory.recall(DEFINITION) or "{}")
    if not known:
        return (), ()
    now = Definition.of(spec)
    before = {name: value for name, value in known["fixed"].items() if name in now.fixed or name.startswith("source ")}
    return tuple(differences(known["free"], now.free)), tuple(differences(before, now.fixed))


def _files_read(batches: Batches) -> frozenset[Path]:
    """From the notes of Spark's file sources."""
    lines = (
        line
        for path in batches.sizes
        if path.startswith("sources/")
        for line in batches.read(path).decode(errors="replace").splitlines()
        if line.startswith('{"path"')
    )
    return frozenset(Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines)


def _cost(spec: PipelineSpec, done: frozenset[Path] | None) -> Iterator[str]:
    for name, source in zip(spec.source_names, spec.sources, strict=True):
        connection = expanded(resolve_connection(source.connection))
        if isinstance(connection, ObjectStoreLocalConnection) and done is not None:
            path = str(Path(connection.path).absolute() / source.query)
            files = visible_files(path) if is_pattern(path) or Path(path).exists() else []
            new = [file for file in files if file not in done]
            yield f"reads {counted(len(new), 'file')} of {name}, {size_text(sum(file.stat().st_size for file in new))}"
    transform = spec.transform
    if transform.join is not None:
        yield "keeps the rows of both sides that can still find partners"
    if transform.window is not None:
        yield "keeps one row per group of each window that is open, or may be opened again"
    if transform.join is not None and transform.window is not None:
        yield "two queries, with what goes from the first to the second on the disk in between"
    for name in transform.lookups:
        yield f"copies the lookup {name} when it is read, and joins it in each batch"
    if len(spec.targets) > 1:
        yield f"writes each batch {len(spec.targets)} times, to one target after the other"
