"""Writes the table in docs/guarantees.md from a run of the crash tests: `make crash-matrix`."""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from ematix_flow.streams.steps import STEPS
from tests.crash.test_kill_at_each_step import ALL, MODES, PLACES, everything

PAGE = Path(__file__).parents[2] / "docs/guarantees.md"
BEGIN, END = "<!-- made by `make crash-matrix` -->", "<!-- end -->"


def table(passed: dict[str, bool]) -> str:
    """Cells by what was killed where. A cell is right if it is so with and without operator state, in every target."""
    heads = [f"{store}, {disk}" for store, disk in PLACES]
    lines = [f"| killed as it begins | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for number, step in enumerate(STEPS, 1):
        cells = [_cell(passed, f"{place}, {{}}, {step}, ") for place in heads]
        lines.append(f"| {number} {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(passed: dict[str, bool], start: str) -> str:
    found = [good for operator in MODES for name, good in passed.items() if name.startswith(start.format(operator))]
    return f"{len(ALL) * sum(found)} of {len(ALL) * len(MODES)}" if found else "not run"


def results(report: Path) -> dict[str, bool]:
    """By the words of a case."""
    known = {str(case) for case in everything()}
    cases = {case.attrib["name"]: len(case) == 0 for case in ET.parse(report).iter("testcase")}
    named = {re.sub(r".*\[(.*)\]", r"\1", name): good for name, good in cases.items()}
    return {name: good for name, good in named.items() if name in known}


def written_into(page: str, made: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    made = table(results(Path(sys.argv[1])))
    PAGE.write_text(written_into(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
