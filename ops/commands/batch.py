"""`flow preview`, `flow dry-run` and `flow transform`: looking at batch pipelines, and what runs beside them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ematix_flow import transforms
from ematix_flow.jobs import BatchPipeline, JobResult
from ematix_flow.ops.commands.running import modules_option
from ematix_flow.ops.discovery import find_batch, survey
from ematix_flow.ops.output import as_json, by_name, format_option, table
from ematix_flow.ops.settings import Format
from ematix_flow.ops.terminal import show


def run_batch(pipeline: BatchPipeline, output_format: Format) -> int:
    """Run it, and tell what became of the rows; 1 if a target failed while others went on."""
    result = pipeline.sync()
    show(as_json(asdict(result)) if output_format == "json" else _result_text(result))
    return 1 if result.status == "failed" else 0


@click.command("preview")
@click.argument("wanted", metavar="NAME")
@modules_option
@click.option("--rows", type=click.IntRange(1), default=10, show_default=True, help="How many rows to show.")
@format_option
def preview_command(wanted: str, modules: tuple[str, ...], rows: int, output_format: Format) -> None:
    """Show the first rows of a batch pipeline as they would be written.

    Nothing is written.
    """
    found = find_batch(wanted, modules=modules).preview(rows)
    show(as_json({"pipeline": wanted, "rows": found}) if output_format == "json" else _rows_text(found))


@click.command("dry-run")
@click.argument("wanted", metavar="NAME")
@modules_option
@format_option
def dry_run_command(wanted: str, modules: tuple[str, ...], output_format: Format) -> None:
    """Check that a batch pipeline could run, and tell how.

    Its source is opened and looked at; no row is read and nothing is written.
    """
    result = find_batch(wanted, modules=modules).dry_run()
    ways = {"same_db": "in the database, by its own statements", "cross_db": "through Spark"}
    show(as_json(asdict(result)) if output_format == "json" else f"{wanted} can run, {ways[result.path]}")


@click.group("transform")
def transform_command() -> None:
    """List and run what @ematix.transform declares."""


@transform_command.command("list")
@modules_option
@format_option
def list_transforms(modules: tuple[str, ...], output_format: Format) -> None:
    """List the transforms that are declared here."""
    survey(modules)
    found = [{"name": one.name, "schedule": one.schedule, "origin": one.origin} for one in transforms.declared()]
    if output_format == "json":
        show(as_json({"transforms": found}))
    elif not found:
        show("no transforms are declared here")
    else:
        rows = [[one["name"] or "", one["schedule"] or "", one["origin"] or ""] for one in found]
        show(table([["TRANSFORM", "SCHEDULE", "DECLARED AT"], *rows]))


@transform_command.command("run")
@click.argument("name", metavar="NAME")
@modules_option
def run_transform(name: str, modules: tuple[str, ...]) -> None:
    """Run a transform now, in one transaction of its database."""
    survey(modules)
    transforms.known(name).run()
    show(f"{name}: done")


def _result_text(result: JobResult) -> str:
    ended = "failed in part" if result.status == "failed" else "done"
    way = "in the database" if result.path == "same_db" else "through Spark"
    rows = [[name, by_name(counts)] for name, counts in result.targets.items()]
    rows += [["failed", f"{name}: {words}"] for name, words in result.errors.items()]
    rows += [["not as expected", words] for words in result.failed_expectations]
    head = f"{result.pipeline}: {ended} {way} in {result.duration_seconds:.1f} s, run {result.run_id}"
    return f"{head}\n{table(rows, indent='  ')}" if rows else head


def _rows_text(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "there are no rows"
    return table([list(rows[0]), *([str(value) for value in row.values()] for row in rows)])
