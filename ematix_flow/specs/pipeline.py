"""`PipelineSpec`: the frozen value that every declaration becomes and everything that runs is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal
from urllib.parse import quote

from pydantic import Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from ematix_flow.connections import Connection
from ematix_flow.errors import DeclarationError
from ematix_flow.model import Complaint, Declared, check
from ematix_flow.problems import near, problems_of
from ematix_flow.specs.columns import unknown_columns
from ematix_flow.specs.fields import SQL_KINDS, Name, NotNegative, Positive, Several
from ematix_flow.specs.source import Source
from ematix_flow.specs.state import SparkSettings, StateStore, Watermark
from ematix_flow.specs.target import Target
from ematix_flow.specs.transform import Lookup, Transform

_LONGEST_NAME = 200


class PipelineSpec(Declared):
    """One pipeline. Two pipelines are equal when they do the same, wherever they were declared."""

    name: Name
    """Name of the pipeline; its state, metrics and dead letters carry it."""
    sources: Several[Source] = Field(min_length=1)
    """Inputs."""
    targets: Several[Target] = Field(min_length=1)
    """Outputs."""
    transform: Transform = Field(default_factory=Transform)
    """What happens in between."""
    state_store: StateStore = Field(default_factory=StateStore)
    """Where checkpoints, operator state and dead letters are kept."""
    watermark: Watermark = Field(default_factory=Watermark)
    """How far event time has come."""
    dead_letter_topic: Name | None = None
    """Kafka topic for dead letters."""
    dlq_store: Literal["auto", "topic", "table"] = "auto"
    """Where dead letters go; auto is the topic if there is one, otherwise a table in the state store."""
    dlq_max_attempts: Positive = 3
    """A dead letter is parked when so many attempts have failed, the first one included; one replay is always tried."""
    delivery: Literal["at_least_once", "exactly_once"] = "at_least_once"
    """What Kafka targets promise."""
    trigger_interval_ms: NotNegative | None = None
    """Time between the starts of two micro-batches; without it, one follows the other."""
    batch_bytes: Positive | None = None
    """Most bytes that one micro-batch takes."""
    idle_pause_ms: NotNegative = 500
    """Pause after a micro-batch that found nothing."""
    metrics_port: int | None = Field(default=None, strict=True, ge=0, le=65535)
    """Port of `/metrics`, `/healthz` and `/readyz`."""
    spark: SparkSettings = Field(default_factory=SparkSettings)
    """How the Spark session is made."""
    origin: SkipJsonSchema[str] = Field(default="", exclude=True)
    """File and line of the declaration; no part of what the pipeline is."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PipelineSpec):
            return NotImplemented
        return {**self.__dict__, "origin": ""} == {**other.__dict__, "origin": ""}

    def __hash__(self) -> int:
        return hash((self.name, self.source_names, self.target_names))

    @property
    def source_names(self) -> tuple[str, ...]:
        """One name per source, unique: the given name, else the query, else `source`."""
        return _unique(source.name or source.query or "source" for source in self.sources)

    @property
    def target_names(self) -> tuple[str, ...]:
        """One name per target, unique: the table, topic, queue, stream or folder, else the kind."""
        return _unique(_target_name(target) for target in self.targets)

    @property
    def has_dead_letter_topic(self) -> bool:
        """Whether dead letters go to the topic."""
        return self.dead_letter_topic is not None and self.dlq_store != "table"

    def with_connections(self, resolve: Callable[[str], Connection]) -> PipelineSpec:
        """The same pipeline with every named connection looked up, checked again by the rules of its kind."""

        def found(user: Source | Target | Lookup) -> dict[str, object]:
            fields = {name: getattr(user, name) for name in user.model_fields_set}
            connection = user.connection
            return {**fields, "connection": resolve(connection) if isinstance(connection, str) else connection}

        fields = {name: getattr(self, name) for name in self.model_fields_set | {"origin"}}
        transform = {name: getattr(self.transform, name) for name in self.transform.model_fields_set}
        transform["lookups"] = {name: found(lookup) for name, lookup in self.transform.lookups.items()}
        fields["transform"] = transform
        fields["sources"] = [found(source) for source in self.sources]
        fields["targets"] = [found(target) for target in self.targets]
        try:
            return type(self).model_validate(fields)
        except ValidationError as error:
            problems = problems_of(error, type(self))
            raise DeclarationError(f'pipeline "{self.name}"', problems, origin=self.origin) from None

    @check
    def _name_fits_a_folder(self) -> Iterator[Complaint]:
        # Its state has a folder of this name, in which all but ASCII is written as %C3%BC.
        if len(quote(self.name)) > _LONGEST_NAME:
            yield Complaint(("name",), f"found a name of {len(self.name)} characters", "a shorter one")

    @check
    def _source_names_differ(self) -> Iterator[Complaint]:
        seen: dict[str, int] = {}
        for i, source in enumerate(self.sources):
            if source.name in seen:
                found = f'found "{source.name}", which is also the name of sources[{seen[source.name]}]'
                yield Complaint(("sources", i, "name"), found, "a name of its own")
            elif source.name:
                seen[source.name] = i

    @check
    def _lookups_are_no_sources(self) -> Iterator[Complaint]:
        # The query of a source is its name in SQL only where there are several.
        queries = self.source_names if len(self.sources) > 1 else ()
        streams = ("source", *queries, *(source.name for source in self.sources if source.name))
        for name in self.transform.lookups:
            if name.lower() in (stream.lower() for stream in streams):
                found = "is also the name of the stream in SQL"
                yield Complaint(("transform", "lookups", name), found, "a name of its own")

    @check
    def _columns_are_there(self) -> Iterator[Complaint]:
        yield from unknown_columns(self.sources, self.transform)

    @check
    def _join_names_its_sources(self) -> Iterator[Complaint]:
        join, names = self.transform.join, self.source_names
        if join is None:
            return
        for side in ("left_source", "right_source"):
            name = getattr(join, side)
            if name not in names:
                place = ("transform", "join", side)
                yield Complaint(place, f'found "{name}", which is no source', ", ".join(names), near(name, names))

    @check
    def _tables_are_named(self) -> Iterator[Complaint]:
        if self.transform.cdc and self.transform.cdc.many:
            return
        for i, target in enumerate(self.targets):
            if target.kind in SQL_KINDS and target.table is None:
                yield Complaint(("targets", i, "table"), f"missing; {target.kind} needs a table")

    @check
    def _rows_can_be_matched(self) -> Iterator[Complaint]:
        cdc = self.transform.cdc
        if cdc and cdc.many and all(table.keys for table in (cdc.tables or {}).values()):
            return
        for i, target in enumerate(self.targets):
            if target.mode in ("merge", "scd2") and not target.merge_keys:
                found = f'missing; mode = "{target.mode}" needs keys, or a primary_key of the table'
                yield Complaint(("targets", i, "keys"), found)

    @check
    def _deletes_are_seen_in_a_snapshot(self) -> Iterator[Complaint]:
        whole = all(s.snapshot or (s.kind in (None, *SQL_KINDS) and not s.incremental_column) for s in self.sources)
        for i, target in enumerate(self.targets):
            if target.handle_deletes and not whole:
                found = "needs a source that shows all of its rows at once"
                allowed = "a database without incremental_column, or a Delta table with snapshot"
                yield Complaint(("targets", i, "handle_deletes"), found, allowed)
            if target.handle_deletes and self.transform.on_error != "fail":
                found = f'with on_error = "{self.transform.on_error}" it would take bad rows for deleted ones'
                yield Complaint(("targets", i, "handle_deletes"), found, 'on_error = "fail"')

    @check
    def _dead_letters_have_a_place(self) -> Iterator[Complaint]:
        if self.has_dead_letter_topic:
            return
        if self.dlq_store == "topic":
            yield Complaint(("dead_letter_topic",), 'missing; dlq_store = "topic" needs it')
        elif self.state_store.kind == "in_memory":
            for place in self._dlq_policies():
                unused = 'dlq_store = "table" leaves the topic unused'
                reason = "there is no dead_letter_topic" if self.dead_letter_topic is None else unused
                found = f'"dlq" has nowhere to keep rows: the state store is in_memory and {reason}'
                yield Complaint(place, found, "a dead_letter_topic, or another state store")

    def _dlq_policies(self) -> Iterator[tuple[str, ...]]:
        transform = self.transform
        if transform.on_error == "dlq":
            yield "transform", "on_error"
        if transform.window and transform.window.late_data == "dlq":
            yield "transform", "window", "late_data"
        if transform.join and transform.join.late_data == "dlq":
            yield "transform", "join", "late_data"


def _target_name(target: Target) -> str:
    if target.table is not None:
        return target.table.full_name
    return target.topic or target.queue or target.stream or target.prefix or target.kind or str(target.connection)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    taken: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.append(candidate)
    return tuple(taken)
