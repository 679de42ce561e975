"""What of a declaration a checkpoint depends on: a change of it is refused while the checkpoint is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ematix_flow.config import resolve_connection
from ematix_flow.errors import FlowError
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.kernel import Operator

Facts = dict[str, str]


@dataclass(frozen=True)
class Definition:
    fixed: Facts
    """Positions of sources and state of operators would mean something else."""
    free: Facts
    """May change between two starts: what was written stays, what comes is treated in the new way."""

    @classmethod
    def of(cls, spec: PipelineSpec, operator: Operator | None = None) -> Definition:
        named = list(zip(spec.source_names, spec.sources, strict=True))
        kinds = {f"source {name} kind": resolve_connection(source.connection).kind for name, source in named}
        places = {f"source {name} query": source.query for name, source in named}
        targets = {
            f"target {name} mode": target.mode for name, target in zip(spec.target_names, spec.targets, strict=True)
        }
        followed = {
            f"source {name} incremental_column": s.incremental_column for name, s in named if s.incremental_column
        }
        fixed = {
            "sources": ", ".join(spec.source_names),
            **kinds,
            **followed,
            **(operator.describe() if operator else {}),
        }
        return cls(fixed, {"transform sql": spec.transform.sql or "", **places, **targets})


class DefinitionChanged(FlowError):
    """The pipeline was changed in a way that its checkpoint cannot follow."""

    code = "definition-changed"

    def __init__(self, pipeline: str, differences: list[str]) -> None:
        self.differences = tuple(differences)
        super().__init__(
            f"pipeline {pipeline!r} is not what its checkpoint was made for: " + "; ".join(differences),
            next_step=f"put that back; or read all input again with `flow rewind {pipeline} --from-start`, which says "
            "first what that repeats; or give the changed pipeline a name of its own",
        )


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys([*before, *now])
    return [
        f'{name}: was "{before.get(name, "")}", is "{now.get(name, "")}"'
        for name in names
        if before.get(name, "") != now.get(name, "")
    ]
