"""`make demo` as a newcomer sees it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from examples.orders.events import Made, write_events
from tests.docs.snippets import blocks

ROOT = Path(__file__).parents[2]


def _demo(folder: Path) -> str:
    # Somebody else's state must not matter.
    env = os.environ | {"EMATIX_FLOW_HOME": str(folder.parent / "elsewhere")}
    command = [sys.executable, "-m", "examples.orders.demo", folder]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_it_prints_what_it_did_and_the_readme_shows_that(tmp_path: Path) -> None:
    """One test, because the demo takes a while."""
    folder = tmp_path / "orders"
    printed = _demo(folder)
    every_event_is_in_the_table_or_rejected(printed, folder, write_events(tmp_path / "events"))
    every_reason_is_named_with_its_rows(printed)
    it_says_what_is_promised_and_where_the_time_went(printed)
    it_is_plain_text_of_at_most_100_columns(printed)
    the_readme_shows_what_it_prints(printed)


def every_event_is_in_the_table_or_rejected(printed: str, folder: Path, made: Made) -> None:
    with duckdb.connect(str(folder / "shop.duckdb"), read_only=True) as db:
        rows, orders, late = db.execute(
            "SELECT count(*), count(DISTINCT order_id), count(*) FILTER (late) FROM orders"
        ).fetchall()[0]
    assert (rows, orders, late) == (made.events - made.bad, made.events - made.bad, made.late)
    assert f"{made.events:,} events = {rows:,} orders in the table + {made.bad} rejected." in printed
    assert f"{made.late} orders arrived more than an hour late" in printed


def every_reason_is_named_with_its_rows(printed: str) -> None:
    reasons = ("not valid JSON", "quantity should be int", "ordered_at should be timestamp", "expected a JSON object")
    counts = {reason: int(found[1]) for reason in reasons if (found := re.search(rf"{reason} +(\d+)  ", printed))}
    assert set(counts) == set(reasons)
    assert f"+ {sum(counts.values())} rejected" in printed


def it_says_what_is_promised_and_where_the_time_went(printed: str) -> None:
    assert "orders: exactly once, because" in printed
    steps = re.findall(r"(?m)^  ([1-8]) (\w+) +[\d.]+ s", printed)
    assert [number for number, _ in steps] == list("12345678")
    assert len(re.findall(r"(?m)^  batch \d ", printed)) == 4


def it_is_plain_text_of_at_most_100_columns(printed: str) -> None:
    assert "\x1b" not in printed
    # The folder of this test has a longer name than artifacts/orders.
    own = printed.partition("\nNext\n")[0]
    assert max(len(line) for line in own.splitlines() if "/orders" not in line) <= 100


def the_readme_shows_what_it_prints(printed: str) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = (block.body for block in blocks(page) if (block.language, block.name) == ("text", "demo"))
    assert shown.strip() in printed


def test_it_refuses_to_remove_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    command = [sys.executable, "-m", "examples.orders.demo", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "holds something else" in done.stderr
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.slow
def test_a_second_run_begins_anew(tmp_path: Path) -> None:
    def numbers(text: str) -> list[str]:
        return [line for line in text.splitlines() if not re.search(r"\d s\b", line)]

    assert numbers(_demo(tmp_path / "orders")) == numbers(_demo(tmp_path / "orders"))
