"""`flow status`: how each declared pipeline is doing, on one line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from ematix_flow.errors import FlowError
from ematix_flow.jobs import BatchPipeline
from ematix_flow.ops.commands.running import modules_option
from ematix_flow.ops.discovery import Found, find, survey
from ematix_flow.ops.dlq import printable
from ematix_flow.ops.output import as_json, format_option, table
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.state import memory_of, state_of, time_text
from ematix_flow.ops.terminal import show
from ematix_flow.state.history import Run, runs_of
from ematix_flow.state.lock import PipelineBusy

_COLUMNS = ["PIPELINE", "STATUS", "SINCE", "BATCH", "DEAD LETTERS", "CODE"]


@click.command("status")
@click.argument("wanted", metavar="[NAME|FILE.toml]", required=False)
@modules_option
@format_option
@click.pass_obj
def status_command(settings: Settings, wanted: str | None, modules: tuple[str, ...], output_format: Format) -> None:
    """Show how each pipeline is doing: that of a name, those of a file, or all that are declared here.

    Running or not, how the latest run ended and when, the latest batch, and how many dead letters there are.
    """
    found = find(wanted, modules=modules) if wanted else [spec for place in survey(modules) for spec in place.specs]
    facts = [_facts(one, settings) for one in found]
    if output_format == "json":
        show(as_json({"pipelines": facts}))
    elif facts:
        show(table([_COLUMNS, *map(_row, facts)]))
    else:
        show("no pipelines are declared here")


def _facts(found: Found, settings: Settings) -> dict[str, Any]:
    facts: dict[str, Any] = {"pipeline": found.name, "status": "never ran", "since": None}
    if found.state_store.kind == "in_memory":
        return facts | {"status": "unknown: its state is in memory"}
    try:
        with closing(memory_of(found)) as memory:
            latest = _latest(runs_of(memory))
        state = state_of(found.spec() if isinstance(found, BatchPipeline) else found)
    except FlowError as error:
        settings.stderr.line(f"warning: {found.name}: {error.found}")
        return facts | {"status": "unknown", "error_code": error.code}
    facts |= {"batch": state.committed, "dead_letters": sum(state.dead_letters.values())}
    if latest is None:
        return facts
    at = latest.ended_at or latest.started_at
    return facts | {"status": latest.status, "since": at, "run_id": latest.run_id, "error_code": latest.error_code}


def _latest(runs: Sequence[Run]) -> Run | None:
    """One that was not let in, because another one runs, says nothing of the pipeline."""
    return next((run for run in runs if run.error_code != PipelineBusy.code), None)


def _row(facts: dict[str, Any]) -> list[str]:
    batch, letters = facts.get("batch"), facts.get("dead_letters")
    counts = ["" if number is None else f"{number:,}" for number in (batch, letters)]
    name, since = printable(facts["pipeline"]), time_text(facts["since"])
    return [name, facts["status"], since, *counts, facts.get("error_code") or ""]
