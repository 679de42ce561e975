"""Writes the table in docs/guarantees.md from a run of the crash tests: `make crash-matrix`."""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from ematix_flow.streams.steps import STEPS
from tests.crash.test_kill_at_each_step import PLACES, QUICK, everything

PAGE = Path(__file__).parents[2] / "docs/guarantees.md"
BEGIN, END = "<!-- made by `make crash-matrix` -->", "<!-- end -->"


def table(passed: dict[str, bool]) -> str:
    """How many of the targets of a cell, with and without operator state, have the right rows."""
    columns = [(f"{store}, {disk}", f"{store}, {disk}", QUICK) for store, disk in PLACES]
    columns.append(("target Delta, stores in turn", "", ("delta_local",)))
    lines = [f"| killed as it begins | {' | '.join(head for head, *_ in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for number, step in enumerate(STEPS, 1):
        cells = [_cell(passed, step, place, targets) for _, place, targets in columns]
        lines.append(f"| {number} {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(passed: dict[str, bool], step: str, place: str, targets: tuple[str, ...]) -> str:
    cases = [c for c in everything() if c.point == step and c.targets == targets and str(c).startswith(place)]
    found = [passed.get(f"{case}, {targets[0]}") for case in cases]
    return "not run" if None in found else f"{len(targets) * sum(map(bool, found))} of {len(targets) * len(found)}"


def results(report: Path) -> dict[str, bool]:
    """By the words of a case."""
    cases = {case.attrib["name"]: len(case) == 0 for case in ET.parse(report).iter("testcase")}
    return {re.sub(r".*\[(.*)\]", r"\1", name): good for name, good in cases.items()}


def written_into(page: str, made: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    made = table({name: good for report in sys.argv[1:] for name, good in results(Path(report)).items()})
    PAGE.write_text(written_into(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
