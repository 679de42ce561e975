"""What of the declared surface runs today. Each entry goes when its part is built."""

from __future__ import annotations

from ematix_flow.errors import NotBuilt
from ematix_flow.sinks.opening import SINKS
from ematix_flow.specs import PipelineSpec


def not_built(spec: PipelineSpec) -> list[str]:
    """The parts of a pipeline that are declared but cannot run yet."""
    cdc = spec.transform.cdc
    parts = {
        "[transform] sql with [transform.cdc]": cdc and spec.transform.sql,
        "[transform.lookups] with [transform.cdc]": cdc and spec.transform.lookups,
    }
    return [*(part for part, declared in parts.items() if declared), *(_targets_without_changes(spec) if cdc else ())]


def _targets_without_changes(spec: PipelineSpec) -> list[str]:
    """Targets that take rows, but not changes of tables."""
    missing = []
    for target in spec.targets:
        sink, mode = SINKS.get(target.kind or ""), "merge" if target.mode == "append" else target.mode
        if sink is not None and mode not in sink.capabilities.takes_changes:
            missing.append(f"[transform.cdc] with mode {mode!r} on {target.kind!r}")
    return missing


def refuse_what_is_not_built(spec: PipelineSpec) -> None:
    if missing := not_built(spec):
        raise NotBuilt(f"pipeline {spec.name!r}: {', '.join(missing)}")
