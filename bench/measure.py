"""What both contenders measure in the same way."""

from __future__ import annotations

import json
from pathlib import Path

SCHEMA = "id long, customer string, amount double, country string, paid boolean, ts timestamp"


def peak_memory_mb() -> float:
    """Highest resident memory of this process, its JVM and its Python workers, added up."""
    parents = {int(p.name): _status(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    mine = {_self()}
    while more := {pid for pid, status in parents.items() if status.get("PPid") in mine} - mine:
        mine |= more
    return sum(parents[pid].get("VmHWM", 0) for pid in mine) / 1024


def report(**facts: object) -> None:
    print(json.dumps(facts))


def _self() -> int:
    return int(Path("/proc/self").resolve().name)


def _status(process: Path) -> dict[str, int]:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(fields[name].split()[0]) for name in ("PPid", "VmHWM") if name in fields}
