"""The pages say what the code says."""

import re
import subprocess
import sys

import pytest

from ematix_flow.sinks.opening import SINKS
from ematix_flow.streams.sources.opening import SOURCES
from ematix_flow.streams.steps import STEPS
from tests.docs.snippets import ROOT


def test_the_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["docs/how-it-works.md", "docs/guarantees.md", "docs/images/pipeline.svg"])
def test_the_eight_steps_have_the_same_names_and_order_everywhere(page: str) -> None:
    numbered = re.findall(r"\b([1-8]) ([a-z]+)\b", (ROOT / page).read_text(encoding="utf-8"))
    named = {number: word for number, word in numbered if word in STEPS}
    assert list(dict.fromkeys(named.items())) == [(str(i), step) for i, step in enumerate(STEPS, 1)]


def test_the_readme_lists_exactly_the_kinds_that_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for line, kinds in (("Sources", SOURCES), ("Targets", SINKS)):
        listed = re.search(rf"\*\*{line}\*\*: (.*)", readme)
        assert listed is not None
        assert set(re.findall(r"`(\w+)`", listed[1])) == set(kinds)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/connectors").glob("*.md")), ids=lambda page: page.stem)
def test_every_connector_page_has_the_same_headings(page) -> None:
    headings = re.findall(r"(?m)^## (.*)$", page.read_text(encoding="utf-8"))
    assert headings == ["Delivery guarantee", "Back pressure", "Schema changes", "Limits"]


def test_the_readme_names_every_folder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    folders = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"build"}
    assert {name for name in folders if f"`{name}/`" not in readme} == set()
