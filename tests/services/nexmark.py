"""Events of the Nexmark benchmark, from the generator that others use, too: persons, auctions and bids, in one file."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

VERSION = "0.2.0"


def events(count: int) -> list[dict[str, Any]]:
    """`{"Bid": {...}}` and the like, in the order of their times; the first one at 2026-01-01."""
    done = subprocess.run([_generator(), "-n", str(count), "--no-wait"], capture_output=True, check=True)
    made = [json.loads(line) for line in done.stdout.splitlines()]
    # It begins at the wall clock.
    shift = 1_767_225_600_000 - next(iter(made[0].values()))["date_time"]
    for event in made:
        for facts in event.values():
            facts["date_time"] += shift
    return made


@cache
def _generator() -> Path:
    """Built once per machine, which takes half a minute."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = caches / "ematix-flow-tests" / f"nexmark-{VERSION}"
    program = root / "bin" / "nexmark"
    if not program.exists():
        assert shutil.which("cargo"), "the generator of Nexmark events is built with cargo: install Rust"
        command = ["cargo", "install", "nexmark", "--version", VERSION, "--features", "bin", "--root", str(root)]
        subprocess.run(command, check=True, capture_output=True)
    return program
