"""`flow doctor`: whether this machine can run pipelines, and what to do if not."""

from __future__ import annotations

from dataclasses import asdict

import click

from ematix_flow.ops.doctor import Check, examine
from ematix_flow.ops.output import as_json, counted, format_option, table
from ematix_flow.ops.settings import Format
from ematix_flow.ops.terminal import show


@click.command("doctor")
@format_option
@click.pass_context
def doctor_command(context: click.Context, output_format: Format) -> None:
    """Check this machine: Java, Spark, memory, folders, drivers, connections.

    Exits 1 if something would keep pipelines from running.
    """
    checks = examine()
    problems = sum(check.status == "problem" for check in checks)
    if output_format == "json":
        show(as_json({"ok": not problems, "checks": [asdict(check) for check in checks]}))
    else:
        show(_text(checks))
    if problems:
        context.exit(1)


def _text(checks: list[Check]) -> str:
    rows: list[list[str]] = []
    for check in checks:
        rows.append([check.status, check.name, check.found])
        if check.next_step:
            rows.append(["", "", f"-> {check.next_step}"])
    tally = {status: sum(check.status == status for check in checks) for status in ("problem", "warning")}
    bad = ", ".join(counted(number, status) for status, number in tally.items() if number)
    return f"{table(rows)}\n\n{bad or 'everything is in order'}"
