"""`flow secrets test`: whether every `${...}` of the declarations has a value, without showing one."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ematix_flow.config import list_connections
from ematix_flow.connections import Connection
from ematix_flow.errors import FlowError
from ematix_flow.ops.commands.running import modules_option
from ematix_flow.ops.discovery import survey
from ematix_flow.ops.failing import text_of
from ematix_flow.ops.output import as_json, format_option, table
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.terminal import show
from ematix_flow.secrets import expand, references
from ematix_flow.specs import Lookup, PipelineSpec, Source, Target


@click.group("secrets")
def secrets_command() -> None:
    """Look after the secrets that declarations refer to."""


@secrets_command.command("test")
@modules_option
@format_option
@click.pass_context
def test_command(context: click.Context, modules: tuple[str, ...], output_format: Format) -> None:
    """Resolve every ${...} of the connections and pipelines that are declared here.

    Environment variables and secret stores are asked as they are when a pipeline opens the connection. What they
    answer is not shown. Exits 1 if one has no answer.
    """
    declared = list(dict.fromkeys(_declared(modules)))
    failed: dict[str, FlowError] = {}
    for reference in dict.fromkeys(reference for reference, _ in declared):
        try:
            expand(reference)
        except FlowError as error:
            failed[reference] = error
    facts = [
        {"reference": reference, "used_by": place, "found": reference not in failed} for reference, place in declared
    ]
    if output_format == "json":
        show(as_json({"references": facts}))
    elif declared:
        rows = [[reference, place, "missing" if reference in failed else "found"] for reference, place in declared]
        show(table([["REFERENCE", "USED BY", "STATUS"], *rows]))
    else:
        show("no declaration refers to a secret")
    for problem in failed.values():
        context.ensure_object(Settings).stderr.line(text_of(problem))
    if failed:
        context.exit(1)


def _declared(modules: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each reference, and who has it."""
    specs = [spec for place in survey(modules) for spec in place.specs if isinstance(spec, PipelineSpec)]
    for found in list_connections().values():
        if found.connection is not None:
            yield from _in(f"connection {found.name}", found.connection)
    for spec in specs:
        parts: list[tuple[str, Source | Target | Lookup]] = [
            *zip(spec.source_names, spec.sources, strict=True),
            *zip(spec.target_names, spec.targets, strict=True),
            *spec.transform.lookups.items(),
        ]
        for name, part in parts:
            if isinstance(part.connection, Connection):
                yield from _in(f"pipeline {spec.name}, {name}", part.connection)
        yield from ((reference, f"pipeline {spec.name}, state_store") for _, reference in references(spec.state_store))


def _in(place: str, connection: Connection) -> Iterator[tuple[str, str]]:
    return ((reference, f"{place}, {field}") for field, reference in references(connection))
