"""How a TOML document is laid out: which of its keys is which field of a spec, and how each place is spelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ematix_flow.connections import CONNECTION_KINDS, Connection
from ematix_flow.connections.kinds import input_names
from ematix_flow.errors import Problem
from ematix_flow.problems import Loc, Spelling, unknown_key
from ematix_flow.specs import Lookup, PipelineSpec, Source, Target, Transform
from ematix_flow.specs.fields import data_kinds
from ematix_flow.specs.target import takes

ENDS: dict[str, tuple[str, type[Source | Target]]] = {"source": ("sources", Source), "target": ("targets", Target)}
"""`[source]` for one, `[[sources]]` for several."""
RENAMED = {"pipeline_name": "name"}
SHORTHANDS = ("source_query", "max_rows_per_batch")
"""Top-level keys that belong to the sources."""
SHARED = ("spark", "state_store")
"""Tables that may stand once beside `[[pipelines]]`, for all pipelines without their own."""
NO_CONNECTIONS_HERE = ("connections do not belong into a pipeline file", ".ematix-flow.toml beside it")


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a model in TOML; what only Python can give has none."""
    return [field.alias or name for name, field in model.model_fields.items() if not field.exclude]


def document_keys() -> list[str]:
    """The keys at the top of a document, or of one of its `[[pipelines]]`."""
    spelled = {name: key for key, name in RENAMED.items()}
    keys = [spelled.get(name, name) for name in keys_of(PipelineSpec)]
    return [keys[0], *ENDS, *SHORTHANDS, *keys[1:]]


def connection_keys(kind: object) -> list[str]:
    """The keys of a kind of connection; of all kinds, if there is no such kind. One written in place needs no name."""
    kinds = [kind] if isinstance(kind, str) and kind in data_kinds() else data_kinds()
    keys = dict.fromkeys(key for each in kinds for key in input_names(CONNECTION_KINDS[each]))
    return [key for key in keys if key not in ("kind", "name")]


def all_keys() -> list[str]:
    """Every dotted key of a document, to tell where a key belongs that stands in the wrong table."""
    return [path for end, (_, model) in ENDS.items() for path in _below(model, end)] + list(_below(PipelineSpec, ""))


class Shape:
    """One pipeline of a document on its way into a spec: its fields, its spelling and what is wrong already."""

    def __init__(
        self,
        document: Mapping[str, Any],
        at: Loc,
        file: str,
        lines: Mapping[Loc, int],
        shared: Mapping[str, Any] | None = None,
    ) -> None:
        inherited = {key: table for key, table in (shared or {}).items() if key not in document}
        self.document, self.at = {**document, **inherited}, at
        self.paths: dict[Loc, Loc] = {(): at, **{(name,): (*at, key) for key, name in RENAMED.items()}}
        self.paths |= {(key,): (key,) for key in inherited}
        self.keys: dict[Loc, list[str]] = {at: document_keys()}
        self.models: dict[Loc, type[BaseModel]] = {}
        self.spelling = Spelling(self.paths, self.keys, self.models, all_keys(), file, lines)
        self.problems: list[Problem] = []
        self.fields: dict[str, Any] = {"origin": f"{file}:{self.spelling.line((*at, 'pipeline_name')) or 1}"}
        self._read()

    def _read(self) -> None:
        for key, value in self.document.items():
            if key == "connections":
                self._complain((key,), *NO_CONNECTIONS_HERE)
            elif key not in self.keys[self.at]:
                meant = "pipeline_name" if key == "name" else ""
                problem = unknown_key(
                    (*self.at, key), self.keys[self.at], self.spelling, elsewhere=self.spelling.elsewhere, meant=meant
                )
                self.problems.append(problem)
            elif key not in (*ENDS, *SHORTHANDS, *(plural for plural, _ in ENDS.values())):
                self.fields[RENAMED.get(key, key)] = value
        for end in ENDS:
            self._read_end(end)
        self._spread_shorthands()
        self._read_transform()

    def _read_end(self, end: str) -> None:
        plural, model = ENDS[end]
        one, several = self.document.get(end), self.document.get(plural)
        if one is not None and several is not None:
            self._complain((plural,), f"given together with {end}", f"[{end}] for one, [[{plural}]] for several")
        if one is not None:
            if isinstance(one, list):
                self._complain((end,), "found [[" + end + "]]", f"[{end}] for one, [[{plural}]] for several")
                one = one[0] if one else {}
            self.paths[plural, 0] = (*self.at, end)
            self.fields[plural] = [self._inline(one, model, (plural, 0), (end,))]
        elif isinstance(several, Mapping):
            self._complain((plural,), f"found [{plural}]", f"[{end}] for one, [[{plural}]] for several")
            self.paths[plural, 0] = (*self.at, plural)
            self.fields[plural] = [self._inline(several, model, (plural, 0), (plural,))]
        elif isinstance(several, list):
            self.fields[plural] = [
                self._inline(entry, model, (plural, i), (plural, i)) for i, entry in enumerate(several)
            ]
        elif several is not None:
            self.fields[plural] = several
        else:
            self.paths[(plural,)] = (*self.at, end)

    def _inline(self, table: Any, model: type[BaseModel], loc: Loc, below: Loc) -> Any:
        """A table that names its connection, or has the fields of one between its own."""
        if not isinstance(table, Mapping):
            return table
        own, place, kind = keys_of(model), (*self.at, *below), table.get("kind")
        if "connection" in table and "kind" not in table:
            self.keys[place] = own
            return dict(table)
        if "connection" in table:
            self._complain(
                (*below, "connection"),
                "given together with kind",
                "connection for a declared one, kind for one written here",
            )
        theirs = [
            key for key in connection_keys(kind) if key not in own or (model is Target and not takes(str(kind), key))
        ]
        meant = [key for key in own if key != "connection" and (model is not Target or takes(str(kind), key))]
        self.keys[place] = list(dict.fromkeys(["kind", *theirs, *meant]))
        self.paths[*loc, "connection"] = place
        if kind in data_kinds():
            self.models[*loc, "connection"] = CONNECTION_KINDS[str(kind)]
        rest = {key: value for key, value in table.items() if key not in theirs and key not in ("kind", "connection")}
        return {**rest, "connection": {key: table[key] for key in table if key in theirs or key == "kind"}}

    def _spread_shorthands(self) -> None:
        """`source_query` belongs to the one source, `max_rows_per_batch` to every source without its own."""
        listed = self.fields.get("sources")
        sources = (
            {i: each for i, each in enumerate(listed) if isinstance(each, dict)} if isinstance(listed, list) else {}
        )
        if "source_query" in self.document:
            if "source" not in self.document and sources:
                self._complain(("source_query",), "given together with sources", "query in each of them")
            elif any("query" in source for source in sources.values()):
                self._complain(("source_query",), "given together with source.query", "one of the two")
            elif sources:
                sources[0]["query"] = self.document["source_query"]
                self.paths["sources", 0, "query"] = (*self.at, "source_query")
        if "max_rows_per_batch" in self.document:
            for i, source in sources.items():
                if "max_rows_per_batch" not in source:
                    source["max_rows_per_batch"] = self.document["max_rows_per_batch"]
                    self.paths["sources", i, "max_rows_per_batch"] = (*self.at, "max_rows_per_batch")

    def _read_transform(self) -> None:
        transform = self.fields.get("transform")
        if not isinstance(transform, Mapping):
            return
        kept = dict(transform)
        for key, field in Transform.model_fields.items():
            if field.exclude and key in kept:
                del kept[key]
                self._complain(("transform", key), "can only be given in Python")
        if isinstance(kept.get("lookups"), Mapping):
            kept["lookups"] = {
                name: self._inline(lookup, Lookup, ("transform", "lookups", name), ("transform", "lookups", name))
                for name, lookup in kept["lookups"].items()
            }
        self.fields["transform"] = kept

    def _complain(self, below: Loc, found: str, allowed: str = "") -> None:
        self.problems.append(self.spelling.problem((*self.at, *below), found, allowed))


def inline_connections(spec: PipelineSpec) -> Iterator[Connection]:
    """The connections that were written out where they are used."""
    users: list[Source | Target | Lookup] = [*spec.sources, *spec.targets, *spec.transform.lookups.values()]
    return (user.connection for user in users if isinstance(user.connection, Connection))


def _below(model: type[BaseModel], path: str) -> Iterator[str]:
    nested: dict[str, type[BaseModel]] = {
        name: kind
        for name, field in model.model_fields.items()
        for kind in [field.annotation, *getattr(field.annotation, "__args__", ())]
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in (Source, Target)
    }
    for key in keys_of(model):
        below = f"{path}.{key}" if path else key
        if path:
            yield below
        if key in nested:
            yield from _below(nested[key], below)
