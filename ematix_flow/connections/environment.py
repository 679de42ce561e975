"""Connections in environment variables: `EMATIX_FLOW_DSN_<NAME>` and `EMATIX_FLOW_<KIND>_<NAME>_<FIELD>`."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from ematix_flow.connections.base import Connection
from ematix_flow.connections.kinds import CONNECTION_KINDS, build_connection, input_names
from ematix_flow.connections.urls import connection_from_url
from ematix_flow.errors import DeclarationError, Problem


def dsn_variables(name: str) -> list[str]:
    """The variables that may hold the DSN of a connection, the first one wins."""
    own = f"EMATIX_FLOW_DSN_{_upper(name)}"
    return [own, "EMATIX_FLOW_DSN"] if name == "default" else [own]


def describe_dsn_variable(name: str) -> str:
    """Where `from_dsn_variable` looks, in words."""
    return f"environment variable {' or '.join(dsn_variables(name))}"


def describe_field_variables(name: str) -> str:
    """Where `from_field_variables` looks, in words."""
    return f"environment variables EMATIX_FLOW_<KIND>_{_upper(name)}_<FIELD>"


def from_dsn_variable(name: str) -> tuple[Connection, str] | None:
    """The connection in the DSN variable of a name, with the variable."""
    for variable in dsn_variables(name):
        if os.environ.get(variable):
            try:
                return connection_from_url(os.environ[variable], name=name), f"environment variable {variable}"
            except DeclarationError as error:
                problems = [replace(problem, key=f"environment variable {variable}") for problem in error.problems]
                raise DeclarationError(error.subject, problems) from None
    return None


def from_field_variables(name: str) -> tuple[Connection, str] | None:
    """The connection whose fields are variables of their own, with the variables."""
    found: dict[str, dict[str, str]] = {}
    for kind, cls in CONNECTION_KINDS.items():
        prefix = f"EMATIX_FLOW_{kind.upper()}_{_upper(name)}_"
        # A variable that names no field may belong to a longer connection name, so it is not a mistake here.
        variables = {field: f"{prefix}{field.upper()}" for field in input_names(cls) if field not in ("name", "kind")}
        given = {field: variable for field, variable in variables.items() if variable in os.environ}
        if given:
            found[kind] = given
    if not found:
        return None
    if len(found) > 1:
        clash = ", ".join(next(iter(given.values())) for given in found.values())
        problem = Problem("kind", f"environment variables declare it as {' and as '.join(found)} ({clash})", "one kind")
        raise DeclarationError(f'connection "{name}"', [problem])
    kind, given = next(iter(found.items()))
    fields = {field: os.environ[variable] for field, variable in given.items()}
    try:
        built = build_connection(f'connection "{name}"', {"name": name, "kind": kind, **fields})
    except DeclarationError as error:
        prefix = f"EMATIX_FLOW_{kind.upper()}_{_upper(name)}_"
        problems = [Problem(f"{prefix}{p.key.upper()}", p.found, p.allowed, p.suggestion) for p in error.problems]
        raise DeclarationError(error.subject, problems) from None
    return built, f"environment variables {', '.join(given.values())}"


def names_in_environment() -> set[str]:
    """The names that some environment variable declares, in lower case."""
    names = set()
    for variable in os.environ:
        if variable == "EMATIX_FLOW_DSN":
            names.add("default")
        elif variable.startswith("EMATIX_FLOW_DSN_"):
            names.add(variable.removeprefix("EMATIX_FLOW_DSN_").lower())
        elif variable.startswith("EMATIX_FLOW_"):
            names |= _name_in_field_variable(variable.removeprefix("EMATIX_FLOW_"))
    return names - {""}


def _name_in_field_variable(rest: str) -> set[str]:
    for kind, cls in CONNECTION_KINDS.items():
        if rest.startswith(f"{kind.upper()}_"):
            middle = rest[len(kind) + 1 :]
            # The longest field first: PROD_SCHEMA_REGISTRY_URL is a field of PROD, not the url of PROD_SCHEMA_REGISTRY.
            for field in sorted(input_names(cls), key=len, reverse=True):
                if middle.endswith(f"_{field.upper()}") and field not in ("name", "kind"):
                    return {middle[: -len(field) - 1].lower()}
    return set()


def _upper(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()
