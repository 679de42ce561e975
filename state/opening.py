"""From a declared state store to where it keeps things: a folder in which Spark works, and perhaps a vault."""

from __future__ import annotations

from pathlib import Path

from ematix_flow.secrets import expanded
from ematix_flow.specs import StateStore
from ematix_flow.state.home import state_of
from ematix_flow.state.vault import Vault


def folder_of(pipeline: str, store: StateStore) -> Path:
    return state_of(pipeline, store.path if store.kind == "local" else None)


def open_vault(pipeline: str, store: StateStore) -> Vault | None:
    """None where a folder is all there is."""
    match store.kind:
        case "postgres":
            from ematix_flow.state.postgres import PostgresVault

            return PostgresVault(pipeline, expanded(store).url or "", store.schema)
        case "delta":
            from ematix_flow.state.delta import DeltaVault

            return DeltaVault(pipeline, expanded(store).path or "")
    return None
