"""`flow connections`: which connections there are and where from, whether they could be opened, and a new one."""

from __future__ import annotations

import click

from ematix_flow.config import Found, list_connections, resolve_connection, set_connection
from ematix_flow.errors import FlowError
from ematix_flow.ops.commands.running import modules_option
from ematix_flow.ops.discovery import survey
from ematix_flow.ops.failing import facts_of, text_of
from ematix_flow.ops.output import as_json, format_option, table
from ematix_flow.ops.reaching import reached
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.terminal import show
from ematix_flow.secrets import expanded


@click.group("connections")
def connections_command() -> None:
    """List, check and set connections."""


@connections_command.command("list")
@modules_option
@format_option
@click.pass_obj
def list_command(settings: Settings, modules: tuple[str, ...], output_format: Format) -> None:
    """List the connections that pipelines can name.

    Looks at the code (every --module, and pipelines.py), at the environment, at ./.ematix-flow.toml and at
    ~/.ematix-flow/connections.toml; the first that knows a name wins.
    """
    found = _declared(modules, settings)
    if output_format == "json":
        show(as_json({"connections": [_facts(one) for one in found.values()]}))
    elif found:
        rows = [[one.name, _kind(one), one.origin] for one in found.values()]
        show(table([["CONNECTION", "KIND", "DECLARED IN"], *rows]))
    else:
        show('no connections are declared\n`flow connections set NAME "<dsn>"` declares one')


@connections_command.command("check")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@modules_option
@format_option
@click.pass_context
def check_command(
    context: click.Context, names: tuple[str, ...], modules: tuple[str, ...], output_format: Format
) -> None:
    """Check the connections of these names, or all.

    Their fields have to be right, every ${...} has to have a value, and databases and Kafka have to answer. Exits 1 if
    one does not.
    """
    settings = context.ensure_object(Settings)
    declared = _declared(modules, settings)
    checked = {name: _checked(name) for name in names or declared}
    if output_format == "json":
        facts = [
            {"name": name, "in_order": False, "problem": facts_of(found)}
            if isinstance(found, FlowError)
            else {"name": name, "in_order": True, **found}
            for name, found in checked.items()
        ]
        show(as_json({"connections": facts}))
    else:
        for name, found in checked.items():
            if isinstance(found, FlowError):
                settings.stderr.line(f"{name}: {text_of(found)}")
            else:
                show(f"{name}: {found['kind']}, in order{'' if found['reached'] else ', not connected to'}")
    if problems := [found for found in checked.values() if isinstance(found, FlowError)]:
        context.exit(max(problem.exit_code for problem in problems))


def _checked(name: str) -> dict[str, object] | FlowError:
    """What it is and whether it answered, or what is wrong with it."""
    try:
        connection = expanded(resolve_connection(name))
        return {"kind": connection.kind, "reached": reached(connection)}
    except FlowError as error:
        return error


@connections_command.command("set")
@click.argument("name")
@click.argument("dsn")
def set_command(name: str, dsn: str) -> None:
    """Set a connection in ~/.ematix-flow/connections.toml.

    A password need not stand in it: 'postgresql://me:${PG_PASSWORD}@host/db' is expanded when it is used.
    """
    file = set_connection(name, dsn)
    show(f'wrote connection "{name}" to {file}')


def _declared(modules: tuple[str, ...], settings: Settings) -> dict[str, Found]:
    # What is declared in code is known once its module is imported.
    for place in survey(modules):
        if place.problem and place.where.endswith(".py"):
            settings.stderr.line(f"{place.where} cannot be used\n{text_of(place.problem)}")
    return list_connections()


def _kind(found: Found) -> str:
    return found.connection.kind if found.connection else "not usable"


def _facts(found: Found) -> dict[str, object]:
    problem = {"problem": facts_of(found.problem)} if found.problem else {}
    kind = found.connection.kind if found.connection else None
    return {"name": found.name, "kind": kind, "declared_in": found.origin, **problem}
