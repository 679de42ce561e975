"""The object-store target on a local disk: folders of parquet, csv, orc or json_lines files, append only.

Spark writes a batch below `_flow/`, which every reader skips; applying it is a rename per file. The names are derived
from (pipeline, generation, batch), and a note of the names about to appear is written first, so that a repeated batch
replaces everything that its first, interrupted attempt showed, even if that attempt had cut the rows differently.
"""

from __future__ import annotations

import json
import re
import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.sinks.base import Applied, Batch, Capabilities, Staged
from ematix_flow.sinks.map_keys import has_other_keys, with_text_keys
from ematix_flow.specs import Target
from ematix_flow.state import durable
from ematix_flow.state.fence import Fence
from ematix_flow.state.home import file_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_SPARK_FORMAT = {"json_lines": "json"}
_SUFFIX = {".json": ".jsonl"}

# Spark's default text form of a timestamp stops at milliseconds; these keep every digit, ISO 8601, UTC.
TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


class FilesSink:
    capabilities: ClassVar[Capabilities] = Capabilities(
        fenced=True,
        transactional=False,
        modes=frozenset({"append"}),
        visibility="files of a batch appear one by one; after a crash the repeated batch replaces them",
    )

    def __init__(self, target: Target, connection: ObjectStoreLocalConnection, name: str) -> None:
        self._name = name
        # Absolute, because Spark would write below the folder in which its Java process was started.
        self._root = Path(connection.path).absolute() / (target.prefix or "")
        self._format = str(connection.format)
        self._options = writer_options(target, self._format)
        self._partition_by = target.partition_by
        self._hidden = self._root / "_flow"

    def prepare(self, schema: StructType) -> StructType:
        durable.make(self._hidden)
        return schema

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        folder = self._note(batch, "staged")
        shutil.rmtree(folder, ignore_errors=True)
        if self._format == "json_lines":
            rows = _with_text_keys(rows)
        writer = rows.write.format(_SPARK_FORMAT.get(self._format, self._format)).options(**self._options)
        writer.partitionBy(*self._partition_by).save(str(folder))
        return Staged(folder)

    def refusals(self, staged: Staged, batch: Batch) -> dict[int, str]:
        return {}

    def apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        mark, note = self._note(batch, "fence.json"), self._note(batch, "applying.json")
        found, begun = _read(mark), _read(note)
        if fence.passed(found.get("generation"), found.get("batch")):
            return Applied(done=False)
        moves = self._moves(staged.folder, batch)
        # A note that agrees with the fence belongs to a finished batch whose process died before removing it.
        finished = (begun.get("generation"), begun.get("batch")) == (found.get("generation"), found.get("batch"))
        shown_before = set() if finished else set(begun.get("files", []))
        durable.write(note, json.dumps({"generation": fence.generation, "batch": fence.batch, "files": list(moves)}))
        for number, (name, draft) in enumerate(moves.items()):
            final = self._root / name
            durable.make(final.parent)
            durable.sync(draft)
            draft.replace(final)
            if number == 0:
                batch.reached("apply/first-file")
        for name in shown_before - set(moves):
            (self._root / name).unlink(missing_ok=True)
        for folder in {(self._root / name).parent for name in moves}:
            durable.sync(folder)
        batch.reached("apply/before-fence")
        durable.write(mark, json.dumps({"generation": fence.generation, "batch": fence.batch}))
        note.unlink()
        shutil.rmtree(staged.folder)
        return Applied(done=True)

    def forget(self) -> None:
        """What is staged lies on the disk, or in the database."""

    def _note(self, batch: Batch, kind: str) -> Path:
        return self._hidden / f"{file_name(batch.pipeline)}.{file_name(self._name)}.{kind}"

    def _is_empty(self, part: Path) -> bool:
        if self._format == "parquet":
            import pyarrow.parquet as pq

            return bool(pq.read_metadata(part).num_rows == 0)
        if self._format == "orc":
            from pyarrow import orc

            return bool(orc.ORCFile(part).nrows == 0)
        return not _has_lines(part, more_than=1 if self._options.get("header") else 0)

    def _moves(self, folder: Path, batch: Batch) -> dict[str, Path]:
        """Final name -> staged file. Partition folders (`day=2026-01-01/`) are kept. Spark writes a file also if there
        is no row for it, and a pipeline with windows has no row in most of its batches."""
        parts = sorted(p for p in folder.rglob("part-*") if p.is_file() and not self._is_empty(p))
        stem = f"{file_name(batch.pipeline)}-{batch.generation[:8]}-{batch.number:08d}"
        return {
            str(part.parent.relative_to(folder) / f"{stem}-{number:05d}{_suffix(part)}"): part
            for number, part in enumerate(parts)
        }


def _has_lines(file: Path, more_than: int) -> bool:
    with file.open("rb") as lines:
        return sum(1 for _ in islice(lines, more_than + 1)) > more_than


def writer_options(target: Target, form: str) -> dict[str, Any]:
    if form == "parquet":
        return {"compression": target.parquet_compression} if target.parquet_compression else {}
    if form == "csv":
        return TIMES | csv_options(target)
    return dict(TIMES) if form == "json_lines" else {}


def csv_options(place: Target) -> dict[str, Any]:
    given = {
        "sep": place.csv_delimiter,
        "header": place.csv_header,
        "quote": place.csv_quote,
        "escape": place.csv_escape,
        "nullValue": place.csv_null_value,
    }
    # A quote inside a value is doubled, as RFC 4180 has it; Spark alone would write a backslash. And it would write an
    # empty text in double quotes, whatever quotes are declared to be.
    quote = place.csv_quote or '"'
    defaults: dict[str, Any] = {"header": True, "escape": quote, "emptyValue": quote * 2}
    return defaults | {option: value for option, value in given.items() if value is not None}


def _with_text_keys(rows: DataFrame) -> DataFrame:
    other = [field for field in rows.schema.fields if has_other_keys(field.dataType)]
    columns = {field.name: rows["`" + field.name.replace("`", "``") + "`"] for field in other}
    return rows.withColumns({one.name: with_text_keys(columns[one.name], one.dataType, TIMES) for one in other})


def _suffix(part: Path) -> str:
    # In folders of a partition, Spark numbers the files of a task: `.c000.json`.
    suffix = re.sub(r"^[^.]*(\.c\d+)?", "", part.name)
    return _SUFFIX.get(suffix, suffix)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
