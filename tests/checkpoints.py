"""A checkpoint as Spark leaves it after some batches over a folder of files, without Spark."""

import json
from collections.abc import Collection
from pathlib import Path

from ematix_flow.state.kernel import YEAR_1_MS

PLANNED_MS = 1_767_225_600_000
"""Batch 0 was planned at the beginning of 2026, each of the others a minute after the one before it."""


def write_checkpoint(folder: Path, batches: int, *, committed: int | None = None, stateful: bool = False) -> None:
    """`committed` of the batches are done. Each has read one file, which the source has logged."""
    done = batches if committed is None else committed
    _write(folder / "metadata", '{"id":"613e375c"}')
    _write(folder / "schema.source.json", "{}")
    _write(folder / "lookups.json", f'{{"{batches - 1}": {{"rates": "v1"}}}}')
    _write(folder / "lookups/rates/v1/part.parquet", "rates")
    _write(folder / "refused.json", "{}")
    for n in range(batches):
        watermark = PLANNED_MS + YEAR_1_MS if stateful else 0
        metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": PLANNED_MS + n * 60_000}
        _write(folder / f"offsets/{n}", f'v1\n{json.dumps(metadata)}\n{{"logOffset":{n}}}')
        _write(folder / f"sources/0/{entry_name(n)}", _log(range(n + 1) if entry_name(n) != str(n) else [n]))
        if n < done:
            _write(folder / f"commits/{n}", 'v1\n{"nextBatchWatermarkMs":0}')
        if stateful:
            _write(folder / f"state/0/0/{n + 1}.delta", f"changes of {n}")
    if stateful:
        _write(folder / "state/0/_metadata/metadata", "v1")


def entry_name(entry: int) -> str:
    """Every tenth entry holds all before it as well."""
    return f"{entry}.compact" if entry % 10 == 9 else str(entry)


def logged_files(folder: Path) -> list[int]:
    """Which files the source takes for read, the way Spark finds out: the newest compact log and all after it."""
    log = folder / "sources/0"
    names = {int(file.name.partition(".")[0]): file for file in log.iterdir() if not file.name.startswith(".")}
    newest = max((number for number, file in names.items() if file.suffix), default=0)
    assert [number for number in sorted(names) if number >= newest] == list(range(newest, max(names) + 1))
    lines = [line for number in sorted(names) if number >= newest for line in names[number].read_text().split("\n")[1:]]
    return [json.loads(line)["batchId"] for line in lines]


def _log(entries: Collection[int]) -> str:
    return "\n".join(["v1", *(json.dumps({"path": f"file:///in/{n}.jsonl", "batchId": n}) for n in entries)])


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
