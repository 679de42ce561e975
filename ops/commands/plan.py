"""`flow plan`: what the next run would do, what it promises and what it costs, without starting it."""

from __future__ import annotations

import click

from ematix_flow.jobs import BatchPipeline
from ematix_flow.ops.commands.running import which_pipeline
from ematix_flow.ops.discovery import find
from ematix_flow.ops.explaining import explain, explained_text
from ematix_flow.ops.failing import text_of
from ematix_flow.ops.output import as_json, format_option
from ematix_flow.ops.planning import Planned, planned
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.terminal import show
from ematix_flow.specs import PipelineSpec


@click.command("plan")
@which_pipeline
@format_option
@click.pass_context
def plan_command(
    context: click.Context, wanted: str, modules: tuple[str, ...], pipeline: str | None, output_format: Format
) -> None:
    """Show what the next run of a pipeline would do.

    Where it goes on, what has changed since the last run, the guarantee of each target, and what it costs. State and
    local folders are looked at; Spark is not started and nothing is changed. Exits 1 if the run would be refused.
    """
    found = find(wanted, modules=modules, pipeline=pipeline)
    specs = [one.spec() if isinstance(one, BatchPipeline) else one for one in found]
    plans = [_plan(context, spec, output_format) for spec in specs]
    if output_format == "json":
        show(as_json({"pipelines": [facts for facts, _ in plans]}))
    if any(plan is None for _, plan in plans):
        context.exit(2)
    if any(plan.refused for _, plan in plans if plan):
        context.exit(1)


def _plan(
    context: click.Context, spec: PipelineSpec, output_format: Format
) -> tuple[dict[str, object], Planned | None]:
    """As data, and as what it is; nothing but the problems of a declaration that has some."""
    explained = explain(spec)
    plan = None if explained.problems else planned(spec)
    if output_format == "text":
        show(f"{explained_text(explained, plan.rows() if plan else ())}\n")
        for problem in explained.problems:
            context.ensure_object(Settings).stderr.line(text_of(problem))
    return explained.as_data() | ({"plan": plan.as_data()} if plan else {}), plan
