"""kill -9 at every step of the commit protocol: a restart gives the same rows as an undisturbed run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.streams.steps import CRASH_AT, STEPS
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")

BATCHES = (range(20), range(20, 40), range(40, 60))
UNDISTURBED = sorted(i for batch in BATCHES for i in batch)
# Points inside a step: between two files of one batch, and just before the mark that says it is done.
INSIDE = {"duckdb": ("apply/before-commit",), "json_lines": ("apply/first-file", "apply/before-fence")}
CASES = [(target, point) for target in INSIDE for point in (*STEPS, *INSIDE[target])]


def killed_at(point: str, declaration: str, folder: Path) -> None:
    """Run the pipeline in a process of its own that dies at `point` of its second batch."""
    program = (
        "import sys; from ematix_flow import run_pipeline; run_pipeline(config_str=sys.stdin.read(), bounded=True)"
    )
    died = subprocess.run(
        [sys.executable, "-c", program],
        input=declaration.encode(),
        cwd=folder,
        env=os.environ | {CRASH_AT: f"{point}@1"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()


@pytest.mark.parametrize(("target", "point"), CASES)
def test_nothing_is_lost_and_nothing_is_doubled(orders: Orders, target: str, point: str) -> None:
    orders.numbered(BATCHES[0])
    orders.arrive("1.jsonl", [*({"id": i, "amount": i / 2} for i in BATCHES[1]), "broken"])
    orders.arrive("2.jsonl", [{"id": i, "amount": i / 2} for i in BATCHES[2]])
    # Two folders make two files per batch, so that an apply can be cut in the middle.
    partitioned = f'{target}\npartition_by = ["day"]' if target == "json_lines" else target
    declared = {
        "source": "max_files_per_batch = 1",
        "sql": "SELECT *, id % 2 AS day FROM source",
        "on_error": "dlq",
        "targets": (partitioned,),
    }
    seen = orders.ids_in_database if target == "duckdb" else orders.ids_in_files

    killed_at(point, orders.toml(**declared), orders.folder)
    first_batch = list(BATCHES[0])
    if point in STEPS[: STEPS.index("apply") + 1]:
        assert seen() == first_batch

    result = orders.run(**declared)

    assert seen() == UNDISTURBED
    assert [letter.payload for letter in orders.dead_letters()] == [b"broken"]
    assert result.batches == 2
