"""What a pipeline promises for each of its targets, computed from capabilities, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from ematix_flow.sinks.opening import sink_type
from ematix_flow.specs import PipelineSpec, Source, Target
from ematix_flow.streams.sources.opening import source_type


@dataclass(frozen=True)
class Guarantee:
    target: str
    promise: str
    """`exactly once`, `effectively once` or `at least once`."""
    reason: str


def guarantees(spec: PipelineSpec) -> tuple[Guarantee, ...]:
    return tuple(
        Guarantee(name, *_promise(spec, target)) for name, target in zip(spec.target_names, spec.targets, strict=True)
    )


def is_snapshot(source: Source) -> bool:
    """Whether each run reads all rows, as they are then and in no order that means anything."""
    of_table = getattr(source_type(source), "snapshots", False) and source.incremental_column is None
    return of_table or source.snapshot


def _promise(spec: PipelineSpec, target: Target) -> tuple[str, str]:
    sink = sink_type(target, spec.delivery).capabilities
    if spec.state_store.kind == "in_memory":
        return "at least once", "the state store is in_memory: after a restart all input is read and written again"
    for name, source in zip(spec.source_names, spec.sources, strict=True):
        if not source_type(source).replayable:
            return "at least once", f"source {name} cannot repeat a batch exactly"
    if sink.fenced and any(map(is_snapshot, spec.sources)):
        anew = "a batch is applied once; one that a crash leaves unfinished reads the table as it is then"
        return "exactly once", f"{anew}; {sink.visibility}"
    if sink.fenced:
        return "exactly once", f"a repeated batch has the same rows and meets its fence; {sink.visibility}"
    return "at least once", f"the target has no fence: a repeated batch is written again; {sink.visibility}"
