"""A declared pipeline in words and as data: sources, transform, targets, and the guarantee of each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.config import resolve_connection
from ematix_flow.connections import Connection
from ematix_flow.errors import FlowError, NotBuilt
from ematix_flow.ops.failing import facts_of
from ematix_flow.ops.output import table
from ematix_flow.sinks.opening import dead_letter_cluster
from ematix_flow.specs import PipelineSpec
from ematix_flow.streams.built import not_built
from ematix_flow.streams.change_tables import by_key, with_tables
from ematix_flow.streams.guarantee import guarantees, is_snapshot
from ematix_flow.streams.sources.opening import source_type
from ematix_flow.streams.transform import BadSql, parsed


@dataclass
class Explained:
    """What there is to say about one spec; collected part by part, so that one problem does not hide another."""

    spec: PipelineSpec
    sources: list[dict[str, Any]] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    not_built: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[FlowError] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        transform = self.spec.transform
        return {
            "name": self.spec.name,
            "origin": self.spec.origin,
            "sources": self.sources,
            "transform": {
                "sql": transform.sql,
                "dialect": transform.dialect,
                "on_error": transform.on_error,
                "operators": _operators(self.spec),
            },
            "targets": self.targets,
            "state_store": self.spec.state_store.kind,
            "not_built": self.not_built,
            "warnings": self.warnings,
            "problems": [facts_of(problem) for problem in self.problems],
        }


def explain(spec: PipelineSpec) -> Explained:
    explained = Explained(spec)
    for name, source in zip(spec.source_names, spec.sources, strict=True):
        kind = _kind(explained, source.connection)
        explained.sources.append({"name": name, "kind": kind, "query": source.query})
        if kind:
            _noted(explained, lambda source=source: source_type(source))
    listed = with_tables(spec)
    for name, target in zip(listed.target_names, listed.targets, strict=True):
        facts: dict[str, Any] = {"name": name, "kind": _kind(explained, target.connection), "mode": target.mode}
        if all(one["kind"] for one in [*explained.sources, facts]):
            alone = spec.model_copy(update={"targets": (target,)})
            promised = _noted(explained, lambda alone=alone: guarantees(alone)[0])
            facts |= {"promise": promised.promise, "reason": promised.reason} if promised else {}
        explained.targets.append(facts)
    if all(one["kind"] for one in [*explained.sources, *explained.targets]):
        _noted(explained, lambda: dead_letter_cluster(spec))
        _noted(explained, lambda: _check_order(explained))
    explained.not_built += [part for part in not_built(spec) if part not in explained.not_built]
    _check_sql(explained)
    if not explained.problems:
        # What a connection that is given by name turns out to be may ask for more than the declaration has.
        _noted(explained, lambda: by_key(spec.with_connections(resolve_connection)))
    return explained


def explained_text(explained: Explained, more: Sequence[Sequence[str]] = ()) -> str:
    """As a table of two columns, to which `more` is added."""
    spec = explained.spec
    rows = [["source", f"{one['name']} ({one['kind'] or 'unknown connection'})"] for one in explained.sources]
    rows.append(["transform", _transform_text(spec)])
    for one in explained.targets:
        rows.append(["target", f"{one['name']} ({one['kind'] or 'unknown connection'}, {one['mode']})"])
        rows.append(["", f"{one['promise']}: {one['reason']}" if "promise" in one else "no promise can be computed"])
    rows.append(["state", spec.state_store.kind])
    rows += [["not yet", part] for part in explained.not_built]
    rows += [list(row) for row in more]
    origin = f"  ({spec.origin})" if spec.origin else ""
    return f"{spec.name}{origin}\n{table(rows, indent='  ')}"


def _check_order(explained: Explained) -> None:
    """Of two rows of a key in one batch the last counts, if anything tells which that is."""
    spec = explained.spec
    unordered = [
        name
        for name, source in zip(spec.source_names, spec.sources, strict=True)
        if is_snapshot(source) and source.event_time_column is None
    ]
    matched = [name for name, target in zip(spec.target_names, spec.targets, strict=True) if target.mode == "merge"]
    if unordered and matched:
        explained.warnings.append(
            f"nothing tells which of two rows of a key in {', '.join(unordered)} is the later one for "
            f"{', '.join(matched)}; name the column of their time (event_time_column, event_timestamp_column)"
        )


def _check_sql(explained: Explained) -> None:
    transform = explained.spec.transform
    if transform.sql is None:
        return
    try:
        parsed(transform.sql, transform.dialect)
    except BadSql as error:
        # Only Spark knows all of its own SQL; but what could be read and is no SELECT is none there, either.
        if transform.dialect == "spark" and error.__cause__ is not None:
            reason = error.found.removeprefix("the transform is ")
            explained.warnings.append(f"the transform could not be checked: {reason}")
        else:
            explained.problems.append(error)


def _kind(explained: Explained, connection: str | Connection) -> str | None:
    try:
        return resolve_connection(connection).kind
    except FlowError as error:
        if str(error) not in map(str, explained.problems):
            explained.problems.append(error)
        return None


def _noted(explained: Explained, work: Any) -> Any:
    """The result of `work`, or nothing: a part that is not built is no mistake, everything else is."""
    try:
        return work()
    except NotBuilt as error:
        words = f"{error.part}{f' ({error.next_step})' if error.next_step else ''}"
        if words not in explained.not_built:
            explained.not_built.append(words)
    except FlowError as error:
        explained.problems.append(error)
    return None


def _operators(spec: PipelineSpec) -> list[str]:
    return [name for name in ("window", "join", "cdc", "lookups") if getattr(spec.transform, name)]


def _transform_text(spec: PipelineSpec) -> str:
    sql = " ".join((spec.transform.sql or "none, every column as it is").split())
    dialect = f" [{spec.transform.dialect}]" if spec.transform.sql and spec.transform.dialect != "spark" else ""
    operators = "".join(f", then {name}" for name in _operators(spec))
    return f"{sql}{dialect}{operators}; bad rows: {spec.transform.on_error}"
