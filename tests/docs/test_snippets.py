"""Every snippet of the README and of docs/ runs and gives what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, blocks

PLAYER = ROOT / "tests/docs/snippets.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_SNIPPETS = [page for page in PAGES if any(blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_runs_and_shows_what_it_shows(page: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shop = tmp_path / "shop"
    shop.mkdir()
    # A process of its own: a page declares connections and pipelines, and starts Spark in the folder it is about.
    played = subprocess.run(
        [sys.executable, PLAYER, page], cwd=shop, env=os.environ | {"HOME": str(home)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    links += re.findall(r'<img src="([^"]+)"', page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
