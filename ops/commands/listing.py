"""`flow list` and `flow consume-list`: pipelines that can be run by name from here, and declarations that cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ematix_flow.ops.commands.running import modules_option
from ematix_flow.ops.discovery import Place, survey
from ematix_flow.ops.failing import facts_of, text_of
from ematix_flow.ops.output import as_json, format_option, table
from ematix_flow.ops.settings import Format
from ematix_flow.ops.terminal import show
from ematix_flow.specs import PipelineSpec


@click.command("list")
@modules_option
@format_option
def list_command(modules: tuple[str, ...], output_format: Format) -> None:
    """List the pipelines that are declared here.

    Looks at every --module, at pipelines.py, and at *.toml and pipelines/*.toml of the current folder.
    """
    places = survey(modules)
    show(_json(places) if output_format == "json" else _text(places))


@click.command("consume-list")
@modules_option
@format_option
def consume_list_command(modules: tuple[str, ...], output_format: Format) -> None:
    """List the pipelines that `flow consume` can run.

    Those of `flow list`, without batch pipelines, which end by themselves.
    """
    places = tuple(
        replace(place, specs=tuple(spec for spec in place.specs if isinstance(spec, PipelineSpec)))
        for place in survey(modules)
    )
    show(_json(places) if output_format == "json" else _text(places))


def _text(places: tuple[Place, ...]) -> str:
    rows = [
        [spec.name, f"{', '.join(spec.source_names)} -> {', '.join(spec.target_names)}", spec.origin or place.where]
        for place in places
        for spec in place.specs
    ]
    broken = [f"{place.where} cannot be used\n{text_of(place.problem)}" for place in places if place.problem]
    if not rows and not broken:
        return (
            f"no pipelines are declared in {Path.cwd()} (pipelines.py, *.toml, pipelines/*.toml)\n"
            "`flow init PATH` writes a working example"
        )
    found = [table([["PIPELINE", "FROM -> TO", "DECLARED AT"], *rows])] if rows else []
    return "\n\n".join([*found, *broken])


def _json(places: tuple[Place, ...]) -> str:
    found = [
        {
            "name": spec.name,
            "sources": list(spec.source_names),
            "targets": list(spec.target_names),
            "place": place.where,
            "origin": spec.origin,
        }
        for place in places
        for spec in place.specs
    ]
    problems = [{"place": place.where, **facts_of(place.problem)} for place in places if place.problem]
    return as_json({"pipelines": found, "problems": problems})
