"""`flow schema`: the JSON schema of pipeline files, for editors."""

from __future__ import annotations

import click

from ematix_flow.ops.output import as_json
from ematix_flow.ops.terminal import show


@click.command("schema")
def schema_command() -> None:
    """Print the JSON schema of a pipeline file.

    Save it, and an editor completes and checks while you type: `flow schema > ematix-flow.schema.json`, then
    `#:schema ./ematix-flow.schema.json` as the first line of the TOML file.
    """
    from ematix_flow.schema import json_schema

    show(as_json(json_schema()))
