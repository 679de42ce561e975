"""`flow init`: a small project that works at once."""

from __future__ import annotations

from pathlib import Path

import click

from ematix_flow.ops.scaffold import write_project
from ematix_flow.ops.terminal import show


@click.command("init")
@click.argument("path", type=click.Path(path_type=Path))
def init_command(path: Path) -> None:
    """Write a small working project into PATH.

    Existing files are never overwritten.
    """
    written = write_project(path)
    lines = [f"wrote {len(written)} files:", *(f"  {file}" for file in written), "", "Next:"]
    enter = [] if path.resolve() == Path.cwd() else [f"  cd {path}"]
    show("\n".join([*lines, *enter, "  flow validate pipelines.toml", "  flow run --bounded orders"]))
