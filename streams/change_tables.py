"""The tables that changes are of, and the targets of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ematix_flow.cdc.changes import ONLY
from ematix_flow.errors import DeclarationError, FlowError, Problem
from ematix_flow.sinks.base import Sink
from ematix_flow.sinks.opening import open_sink
from ematix_flow.specs import CDC, CDCTable, PipelineSpec, TableRef, Target
from ematix_flow.state.home import file_name

_MODES = ("merge", "scd2")


class UnlistedTable(FlowError):
    """A change is of a table that the declaration does not know."""

    code = "unlisted-table"


@dataclass(frozen=True)
class ChangeTable:
    """One source table with its targets."""

    name: str
    """As the source calls it; `ONLY` if there is no other."""
    spec: PipelineSpec
    """The pipeline with the targets of this table alone."""
    sinks: Mapping[str, Sink]

    @property
    def memory(self) -> str:
        """Where the store remembers what is known of it."""
        return f"changes.{file_name(self.name)}.json" if self.name else "changes.json"

    @property
    def label(self) -> str:
        return self.name or self.spec.target_names[0]


def by_key(spec: PipelineSpec) -> PipelineSpec:
    """Changes are merged, unless something else is declared; without a key they cannot be."""
    cdc = spec.transform.cdc
    if cdc is None:
        return spec
    problems, targets = [], []
    for number, target in enumerate(spec.targets):
        if target.mode not in _MODES and "mode" in target.model_fields_set:
            found = f'found "{target.mode}", and changes are applied by key'
            problems.append(Problem(f"targets[{number}].mode", found, ", ".join(_MODES)))
        elif not target.merge_keys:
            problems += _without_key(cdc, f"targets[{number}].keys")
        if target.mode == "scd2" and cdc.delete_mode == "soft":
            found = 'found "soft", and in a history a delete closes the version'
            problems.append(Problem("transform.cdc.delete_mode", found, "hard, ignore"))
        if target.mode != spec.targets[0].mode and "scd2" in {target.mode, spec.targets[0].mode}:
            found = "found scd2 beside another mode"
            problems.append(Problem(f"targets[{number}].mode", found, "the same mode for all targets of changes"))
        targets.append(target if target.mode in _MODES else target.model_copy(update={"mode": "merge"}))
    if problems:
        raise DeclarationError(f'pipeline "{spec.name}"', problems, origin=spec.origin)
    return spec.model_copy(update={"targets": tuple(targets)})


def _without_key(cdc: CDC, place: str) -> list[Problem]:
    found = "missing; changes are applied by key: name columns as keys, or the primary_key of the table"
    if not cdc.many:
        return [Problem(place, found)]
    listed = (cdc.tables or {}).items()
    return [Problem(f'transform.cdc.tables."{name}".keys', found) for name, table in listed if not table.keys]


def with_tables(spec: PipelineSpec) -> PipelineSpec:
    """With the targets of all listed tables in place of those that are declared for all of them."""
    cdc = spec.transform.cdc
    if cdc is None or not cdc.many:
        return spec
    targets = (_into(target, table) for table in (cdc.tables or {}).values() for target in spec.targets)
    return spec.model_copy(update={"targets": tuple(targets)})


def one_by_one(spec: PipelineSpec) -> PipelineSpec:
    """For runs over a part of what the source had, which may hold a part of a transaction: none is waited for."""
    cdc = spec.transform.cdc
    if cdc is None or not cdc.transactional:
        return spec
    transform = spec.transform.model_copy(update={"cdc": cdc.model_copy(update={"transactional": False})})
    return spec.model_copy(update={"transform": transform})


def listed_tables(spec: PipelineSpec, sinks: Mapping[str, Sink]) -> dict[str, ChangeTable]:
    """`sinks` are those of the pipeline, if all changes are of one table."""
    cdc = spec.transform.cdc
    assert cdc is not None
    if not cdc.many:
        return {ONLY: ChangeTable(ONLY, spec, sinks)}
    return {name: _opened(spec, name, table) for name, table in (cdc.tables or {}).items()}


def found_table(spec: PipelineSpec, name: str, keys: tuple[str, ...], known: Mapping[str, ChangeTable]) -> ChangeTable:
    """A table that is not listed, with a target table of the same name."""
    target = name.rpartition(".")[2]
    keys = keys or spec.targets[0].merge_keys
    step = f'list it as [transform.cdc.tables."{name}"] with a table and keys, or set unlisted = "ignore"'
    if not keys:
        raise UnlistedTable(
            f"the key of table {name} is not known: neither do its records have a key of columns, nor has the target",
            next_step=step,
        )
    opened = _opened(spec, name, CDCTable(table=target, keys=keys))
    for other in known.values():
        if set(other.spec.target_names) & set(opened.spec.target_names):
            raise UnlistedTable(f"tables {other.name} and {name} would both become {target}", next_step=step)
    return opened


def _opened(spec: PipelineSpec, name: str, table: CDCTable) -> ChangeTable:
    own = spec.model_copy(update={"targets": tuple(_into(target, table) for target in spec.targets)})
    targets = zip(own.target_names, own.targets, strict=True)
    return ChangeTable(name, own, {n: open_sink(t, n, spec.delivery, spec.transform.cdc) for n, t in targets})


def _into(target: Target, table: CDCTable) -> Target:
    """The declared target with another table, in the same schema unless it names one."""
    schema, _, name = table.table.rpartition(".")
    keys = table.keys or target.merge_keys
    place = TableRef(schema=schema or (target.table.schema if target.table else ""), name=name, primary_key=keys)
    return target.model_copy(update={"table": place, "primary_key": keys, "keys": keys})
