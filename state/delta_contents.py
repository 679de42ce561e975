"""What the data files of one generation say together: the newest row of a path counts, all others are ballast."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path

from ematix_flow.state.delta_files import DataFile, Row
from ematix_flow.state.delta_table import PipelineTable
from ematix_flow.state.vault import Held, Kept, contents, digest_of, parts_of

LEASE, SHELVES = "lease", "shelf/"
"""Generations that hold no checkpoint."""
SMALL_BYTES = 16 << 20

_HEAD = ""
"""The path of the row that every save has, which tells when it was made and for which batch."""


@dataclass(frozen=True)
class Contents:
    generation: str
    rows: Mapping[DataFile, list[Row]]
    """Without their content."""

    def is_live(self, row: Row) -> bool:
        return not row.gone and row.save == self.newest[row.path].save

    def held(self) -> Held:
        head, live = self.head, filter(self.is_live, self.newest.values())
        files = {row.path: Kept(row.path, row.size, row.digest) for row in live if row.path != _HEAD}
        assert head.saved_at is not None
        return Held(self.generation, head.save, head.batch, head.saved_at, files)

    @cached_property
    def newest(self) -> dict[str, Row]:
        ordered = sorted(chain.from_iterable(self.rows.values()), key=lambda row: row.save)
        return {row.path: row for row in ordered}

    @cached_property
    def head(self) -> Row:
        """Of the latest save. One without a batch belongs to that of the save before it."""
        heads = [row for row in chain.from_iterable(self.rows.values()) if row.path == _HEAD and row.batch is not None]
        batch = max(heads, key=lambda row: row.save).batch if heads else None
        return replace(self.newest[_HEAD], batch=batch)

    def stays(self, file: DataFile) -> bool:
        """A large file is written again only when half of it is ballast, so that each byte is written a few times."""
        sizes = {row.path: (row.size, self.is_live(row)) for row in self.rows[file]}
        live, total = sum(size for size, live in sizes.values() if live), sum(size for size, _ in sizes.values())
        return file.size >= SMALL_BYTES and live * 2 >= total


def checkpoints(files: PipelineTable) -> list[DataFile]:
    return [file for file in files.all() if file.generation != LEASE and not file.generation.startswith(SHELVES)]


def contents_of(files: PipelineTable, generation: str | None = None) -> Contents | None:
    """Of the current generation, unless another one is named."""
    found = checkpoints(files)
    if generation is None and found:
        generation = max(found, key=lambda file: file.save).generation
    rows = {file: files.index(file) for file in found if file.generation == generation}
    return Contents(generation, rows) if rows and generation is not None else None


def rewritten(files: PipelineTable, now: Contents) -> tuple[list[DataFile], list[DataFile]]:
    """Small files as one, without ballast. Gives those it replaces, and the new one, which is not in the table yet."""
    old = [file for file in now.rows if not now.stays(file)]
    if len(old) < 2 and all(file.size < SMALL_BYTES for file in old):
        return [], []
    elsewhere = {row.path for file in now.rows.keys() - set(old) for row in now.rows[file]}

    def needed(row: Row) -> bool:
        tells_of_others = row.gone and row.path in elsewhere and row.save == now.newest[row.path].save
        return row.path != _HEAD and (tells_of_others or now.is_live(row))

    rows = chain.from_iterable(files.contents(file, needed) for file in old)
    return old, [files.write(now.generation, now.head.save, chain([now.head], rows))]


def rows_of_save(number: int, batch: int | None, put: Mapping[str, Path], gone: Collection[str]) -> Iterator[Row]:
    yield Row(_HEAD, number, batch=batch, saved_at=datetime.now(UTC))
    for path in gone:
        yield Row(path, number, gone=True)
    for path, content in contents(put):
        yield from rows_of_file(number, path, content)


def rows_of_file(number: int, path: str, content: bytes) -> Iterator[Row]:
    digest = digest_of(content)
    for part, some in enumerate(parts_of(content)):
        yield Row(path, number, part, len(content), digest, content=some)


def joined(rows: Iterable[Row]) -> Iterator[tuple[str, bytes]]:
    """The parts of a file follow each other."""
    for path, parts in groupby(rows, key=lambda row: row.path):
        yield path, b"".join(part.content for part in parts)
