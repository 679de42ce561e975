"""Servers for tests that are built with Go, once per machine."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def built(name: str, module: str, version: str, command: str) -> Path:
    """The program, which takes up to a minute the first time."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
    program = caches / f"{name}-{version}"
    if not program.exists():
        assert shutil.which("go"), f"{name} is built with Go for tests: install it"
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=caches) as draft:
            for step in (
                ["go", "mod", "init", "local/program"],
                ["go", "mod", "edit", f"-require={module}@{version}"],
                ["go", "build", "-mod=mod", "-o", "program", f"{module}/{command}"],
            ):
                subprocess.run(step, cwd=draft, check=True, capture_output=True)
            Path(draft, "program").replace(program)
    return program
