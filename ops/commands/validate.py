"""`flow validate`: what a pipeline is, what it promises for each target and why, without starting it."""

from __future__ import annotations

import click

from ematix_flow.errors import FlowError
from ematix_flow.jobs import BatchPipeline
from ematix_flow.ops.commands.running import modules_option, pipeline_option
from ematix_flow.ops.discovery import find, find_all
from ematix_flow.ops.explaining import Explained, explain, explained_text
from ematix_flow.ops.failing import facts_of, text_of
from ematix_flow.ops.output import as_json, counted, format_option
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.terminal import show
from ematix_flow.secrets import redact_text


@click.command("validate")
@click.argument("wanted", metavar="[NAME|FILE.toml]", required=False)
@modules_option
@pipeline_option
@format_option
@click.pass_context
def validate_command(
    context: click.Context, wanted: str | None, modules: tuple[str, ...], pipeline: str | None, output_format: Format
) -> None:
    """Check a declaration, or all that `flow list` finds, and print what it promises.

    For each pipeline: its sources, transform and targets, and for each target the guarantee with its reason.
    Nothing is opened and Spark is not started.
    """
    unusable: tuple[FlowError, ...] = ()
    if wanted is None:
        found, unusable = find_all(modules)
    else:
        found = find(wanted, modules=modules, pipeline=pipeline)
    # What a batch pipeline is, its function says.
    explained = [explain(one.spec() if isinstance(one, BatchPipeline) else one) for one in found]
    problems = [*unusable, *(problem for one in explained for problem in one.problems)]
    if output_format == "json":
        data = [one.as_data() for one in explained]
        show(as_json({"valid": not problems, "pipelines": data, "problems": [facts_of(one) for one in unusable]}))
    else:
        _tell(explained, context.ensure_object(Settings))
        for one in unusable:
            context.ensure_object(Settings).stderr.line(text_of(one))
    if problems:
        context.exit(max(problem.exit_code for problem in problems))


def _tell(explained: list[Explained], settings: Settings) -> None:
    for one in explained:
        show(f"{explained_text(one)}\n")
    sound = [one for one in explained if not one.problems]
    waiting = sum(bool(one.not_built) for one in sound)
    later = f"; {counted(waiting, 'pipeline')} cannot be run by this version yet" if waiting else ""
    if sound:
        show(f"{counted(len(sound), 'pipeline')} declared correctly{later}")
    for one in explained:
        for warning in one.warnings:
            settings.stderr.line(f"warning: {one.spec.name}: {redact_text(warning)}")
        for problem in one.problems:
            settings.stderr.line(text_of(problem))
