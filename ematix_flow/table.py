"""Declared tables: an annotated class becomes a frozen `TableDefinition`."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType, UnionType, new_class
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.markers import MayBeNull, NaturalKey, PrimaryKey
from ematix_flow.normalize import Normalizer, chain_problems, columns_named, compose, identifier
from ematix_flow.origins import users_frame, users_line
from ematix_flow.problems import near
from ematix_flow.types import COLUMN_TYPES, Boolean, ColumnType, Nullable, Numeric, String, Text, TimestampTZ

VALID_FROM = "valid_from"
_KEYS, _UNIQUE, _PARTITIONS = "__merge_keys__", "__unique_constraints__", "__partition_columns__"
_FOR_PYTHON_TYPE = {
    "int": "BigInt", "str": "Text", "float": "Double", "bool": "Boolean", "bytes": "Bytes", "dict": "JSON",
    "date": "Date", "datetime": "TimestampTZ", "Decimal": "Numeric[38, 18]", "UUID": "UUID",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column of a declared table."""

    type: ColumnType
    nullable: bool = True
    primary_key: bool = False
    name: str = ""
    natural_keys: tuple[str, ...] = ()
    """The groups of `natural_key(group)` the column is in."""
    normalizers: tuple[Normalizer, ...] = ()

    @property
    def expression(self) -> str:
        """The Spark SQL expression that gives the column from the source's column of the same name."""
        return compose(self.normalizers, self.name)

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that its normalizers name."""
        return columns_named(self.normalizers, self.name)


AUDIT_COLUMNS = (
    Column(TimestampTZ(), nullable=False, name="_loaded_at"),
    Column(Text(), nullable=False, name="_batch_id"),
)
"""When a row was written and by which batch. The batch is text, because a number alone is unique neither across
pipelines nor after a reset, and a scheduled run is known by its run id."""

SCD2_COLUMNS = (
    Column(TimestampTZ(), nullable=False, name=VALID_FROM),
    Column(TimestampTZ(), name="valid_to"),
    Column(Boolean(), nullable=False, name="is_current"),
    Column(Text(), nullable=False, name="row_hash"),
)
"""The interval in which a version of a row was true; `valid_to` of the current one is NULL."""


@dataclass(frozen=True)
class TableDefinition:
    """A declared table. It describes; creating and changing the real table belongs to the target."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    merge_keys: tuple[str, ...] = ()
    """`__merge_keys__` as declared; `resolve_merge_keys` tells which keys count."""
    unique_constraints: tuple[tuple[str, ...], ...] = ()
    """One per natural key, in the order of declaration, then those of `__unique_constraints__`."""
    partition_columns: tuple[str, ...] = ()
    declared_at: str = field(default="", compare=False)
    """`file:line` of the declaration."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.primary_key)

    @property
    def natural_keys(self) -> dict[str, tuple[str, ...]]:
        """The columns of each natural key by its group, in the order of declaration."""
        groups: dict[str, tuple[str, ...]] = {}
        for column in self.columns:
            for group in column.natural_keys:
                groups[group] = (*groups.get(group, ()), column.name)
        return groups

    @property
    def only_read(self) -> frozenset[str]:
        """The columns that normalizers name and the table does not have, in lower case: rows bring them for nothing
        else."""
        own = {name.lower() for name in self.column_names}
        return frozenset(name.lower() for column in self.columns for name in column.named) - own

    @property
    def spark_ddl(self) -> str:
        """The declared columns as a Spark schema string."""
        return ", ".join(
            f"{identifier(column.name)} {column.type.spark_type}{'' if column.nullable else ' NOT NULL'}"
            for column in self.columns
        )

    def audit_columns(self) -> tuple[Column, ...]:
        """`_loaded_at` and `_batch_id`, without those that the table declares itself."""
        return self._missing(AUDIT_COLUMNS)

    def scd2_columns(self) -> tuple[Column, ...]:
        """The columns that scd2 adds, without those that the table declares itself."""
        return self._missing(SCD2_COLUMNS)

    def scd2_primary_key(self, keys: Sequence[str]) -> tuple[str, ...]:
        """What identifies a row of history: the merge keys and `valid_from`."""
        return (*(key for key in keys if key != VALID_FROM), VALID_FROM)

    def _missing(self, added: tuple[Column, ...]) -> tuple[Column, ...]:
        declared = {name.lower(): column for name, column in zip(self.column_names, self.columns, strict=True)}
        problems = [
            Problem(
                column.name, f"declared as {declared[column.name].type!r}", allowed=f"{column.type!r}, or leave it out"
            )
            for column in added
            if column.name in declared and declared[column.name].type.spark_type != column.type.spark_type
        ]
        if problems:
            raise DeclarationError(f"table {self.full_name}", problems)
        return tuple(column for column in added if column.name not in declared)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """A field of this type takes a finished definition: it has checked itself."""
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, _core_schema: Any, _handler: Any) -> dict[str, Any]:
        return {"not": {}, "description": "Only in Python."}


class ManagedTable:
    """Base of every declared table; `__table__` is its definition.

    `@ematix.table` makes a class one. A class may also inherit from it and name itself with `__schema__` and
    `__tablename__`, with columns as annotations or as `Column(...)` attributes.
    """

    __table__: ClassVar[TableDefinition]
    __schema__: ClassVar[str]
    __tablename__: ClassVar[str]
    __columns__: ClassVar[tuple[Column, ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__abstract__"):
            return
        if "__table__" not in cls.__dict__:
            schema = getattr(cls, "__schema__", "analytics")
            cls.__table__ = _define(cls, schema, cls.__dict__.get("__tablename__"))
        definition = cls.__table__
        cls.__schema__, cls.__tablename__, cls.__columns__ = definition.schema, definition.name, definition.columns


def table(schema: str = "analytics", name: str | None = None, **others: Any) -> Callable[[type], type[ManagedTable]]:
    """Declare a table: `@ematix.table(schema="analytics")` on a class whose annotations are its columns."""
    if not isinstance(schema, str):
        problem = Problem("", "the decorator stands without parentheses", allowed="@ematix.table()")
        raise DeclarationError(f"table {getattr(schema, '__name__', schema)}", [problem])
    if others:
        known = ("schema", "name")
        problems = [Problem(key, "unknown keyword", ", ".join(known), near(key, known)) for key in others]
        raise DeclarationError("@ematix.table", problems, origin=users_line())

    def declare(cls: type) -> type[ManagedTable]:
        definition = _define(cls, schema, name)
        bases = (cls,) if issubclass(cls, ManagedTable) else (cls, ManagedTable)
        kept = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
        return new_class(cls.__name__, bases, exec_body=lambda namespace: namespace.update(kept, __table__=definition))

    return declare


def resolve_merge_keys(definition: TableDefinition, explicit_keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns by which a merge finds a row; () when the table has no key at all.

    First that is given: explicit keys, `__merge_keys__`, the first natural key, the primary key. A `UserWarning` says
    so when the second or third differs from the primary key.
    """
    explicit = _names(explicit_keys)
    if problems := _unknown("keys", explicit, definition.column_names):
        raise DeclarationError(f"table {definition.full_name}", problems)
    if explicit:
        return explicit
    natural = next(iter(definition.natural_keys.values()), ())
    keys, origin = (definition.merge_keys, _KEYS) if definition.merge_keys else (natural, "natural_key()")
    if not keys:
        return definition.primary_key
    if definition.primary_key and set(keys) != set(definition.primary_key):
        warnings.warn(
            f"table {definition.full_name} merges by ({', '.join(keys)}) from {origin}, "
            f"not by its primary key ({', '.join(definition.primary_key)}); pass keys= to choose",
            UserWarning,
            stacklevel=2,
        )
    return keys


def snake_case(name: str) -> str:
    """`CustomerDim` -> `customer_dim`, `HTTPServer` -> `http_server`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _define(cls: type, schema: str, name: str | None) -> TableDefinition:
    frame = users_frame()
    file, line = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", None)
    problems = _foreign_decorators(cls)
    columns = () if problems else _read_columns(cls, frame, problems)
    definition = TableDefinition(
        schema=schema,
        name=snake_case(cls.__name__) if name is None else name,
        columns=columns,
        merge_keys=_names(getattr(cls, _KEYS, None) or ()),
        partition_columns=_names(getattr(cls, _PARTITIONS, None) or ()),
        declared_at=f"{file}:{line}" if file else "",
    )
    constraints = [_names(constraint) for constraint in getattr(cls, _UNIQUE, ())]
    unique = tuple(dict.fromkeys([*definition.natural_keys.values(), *constraints]))
    definition = replace(definition, unique_constraints=unique)
    if not problems:
        problems += _table_problems(definition, constraints)
    if problems:
        raise DeclarationError(f"table {cls.__name__}", [replace(p, file=file, line=line) for p in problems])
    return definition


def _foreign_decorators(cls: type) -> list[Problem]:
    marks = {"__dataclass_fields__": "@dataclass", "__attrs_attrs__": "attrs", "__pydantic_fields__": "pydantic"}
    return [
        Problem("", f"the class is also made by {maker}", allowed="a plain annotated class")
        for mark, maker in marks.items()
        if hasattr(cls, mark)
    ]


def _read_columns(cls: type, frame: FrameType | None, problems: list[Problem]) -> tuple[Column, ...]:
    columns: dict[str, Column] = {}
    for owner in reversed(cls.__mro__):
        if owner in (object, ManagedTable):
            continue
        for name, annotation in inspect.get_annotations(owner).items():
            if name.startswith("__") and name.endswith("__"):
                continue
            try:
                known = _evaluate(annotation, owner, frame)
                if known is not ClassVar and get_origin(known) is not ClassVar:
                    _refuse_class_default(owner, name)
                    columns[name] = _column(name, known)
            except DeclarationError as error:
                problems += [replace(p, key=f"{name}.{p.key}" if p.key else name) for p in error.problems]
        assigned = {name: value for name, value in vars(owner).items() if isinstance(value, Column)}
        columns |= {name: replace(column, name=name) for name, column in assigned.items()}
    return tuple(columns.values())


def _evaluate(annotation: Any, owner: type, frame: FrameType | None) -> Any:
    """The annotation itself; where it is text, what the text means where the class was declared."""
    if not isinstance(annotation, str):
        return annotation
    module = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    names = {**COLUMN_TYPES, **module}
    try:
        holder = type(owner.__name__, (), {"__annotations__": {"column": annotation}})
        local = {**(frame.f_locals if frame else {}), **vars(owner)}
        return get_type_hints(holder, names, local, include_extras=True)["column"]
    except NameError as error:
        raise _refused(f"unknown name {error.name} in {annotation}", near(error.name or "", COLUMN_TYPES)) from None
    except (SyntaxError, TypeError, AttributeError) as error:
        raise _refused(f"{annotation} is not a type: {error}") from None


def _refuse_class_default(owner: type, name: str) -> None:
    if name in vars(owner) and not isinstance(vars(owner)[name], Column):
        value = vars(owner)[name]
        raise DeclarationError(name, [Problem("", f"= {value!r} has no effect", f"Annotated[..., default({value!r})]")])


def _column(name: str, annotation: Any) -> Column:
    markers: list[Any] = []
    nullable = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
            markers = [*metadata, *markers]
        elif isinstance(annotation, Nullable):
            nullable, annotation = True, annotation.inner
        elif get_origin(annotation) in (Union, UnionType) and type(None) in get_args(annotation):
            nullable, annotation = True, Union[tuple(a for a in get_args(annotation) if a is not type(None))]  # noqa: UP007
        else:
            break
    column = Column(
        type=_column_type(annotation),
        nullable=nullable or any(isinstance(marker, MayBeNull) for marker in markers),
        primary_key=any(isinstance(marker, PrimaryKey) for marker in markers),
        name=name,
        natural_keys=tuple(dict.fromkeys(marker.group for marker in markers if isinstance(marker, NaturalKey))),
        normalizers=tuple(marker for marker in markers if isinstance(marker, Normalizer)),
    )
    if problems := [*_column_problems(column), *_uncalled(markers)]:
        raise DeclarationError(name, problems)
    return column


def _column_type(annotation: Any) -> ColumnType:
    if isinstance(annotation, ColumnType):
        return annotation
    if annotation in (String, Numeric):
        allowed = "String[256], or Text" if annotation is String else "Numeric[12, 2]"
        raise DeclarationError("", [Problem("", f"{annotation.__name__} without its size", allowed=allowed)])
    if isinstance(annotation, type) and issubclass(annotation, ColumnType):
        return annotation()
    shown = annotation.__name__ if isinstance(annotation, type) else repr(annotation)
    raise _refused(f"{shown} is not a column type", _FOR_PYTHON_TYPE.get(shown, ""))


def _refused(found: str, suggestion: str = "") -> DeclarationError:
    return DeclarationError("", [Problem("", found, ", ".join(COLUMN_TYPES), suggestion)])


def _column_problems(column: Column) -> list[Problem]:
    problems = chain_problems(column.normalizers)
    if column.primary_key and column.nullable:
        problems.append(Problem("", "a primary key that may be NULL", allowed="pk() on a type without | None"))
    return problems


def _uncalled(markers: Iterable[Any]) -> list[Problem]:
    """`pk` or `trim` without parentheses; whatever other libraries put into `Annotated` is theirs."""
    return [
        Problem("", f"{marker.__name__} is not called", allowed=f"{marker.__name__}(...)")
        for marker in markers
        if inspect.isfunction(marker) and marker.__module__.startswith("ematix_flow.")
    ]


def _table_problems(definition: TableDefinition, constraints: Sequence[tuple[str, ...]]) -> list[Problem]:
    columns = definition.column_names
    problems = [] if columns else [Problem("", "no columns", allowed="annotations such as id: Annotated[BigInt, pk()]")]
    named = {"schema": definition.schema, "name": definition.name}
    problems += [Problem(key, "empty") for key, part in named.items() if not part]
    spelled: dict[str, str] = {}
    for column in columns:
        if (first := spelled.setdefault(column.lower(), column)) != column:
            problems.append(Problem(column, f"differs from the column {first} only in case", allowed="distinct names"))
    problems += _unknown(_KEYS, definition.merge_keys, columns)
    problems += _unknown(_PARTITIONS, definition.partition_columns, columns)
    for constraint in constraints:
        problems += _unknown(_UNIQUE, constraint, columns)
    try:
        definition.audit_columns()
    except DeclarationError as error:
        problems += error.problems
    return problems


def _unknown(key: str, names: Sequence[str], columns: Sequence[str]) -> list[Problem]:
    problems = [
        Problem(key, f"no column {name}", ", ".join(columns), near(str(name), columns))
        for name in names
        if name not in columns
    ]
    repeated = dict.fromkeys(name for name in names if names.count(name) > 1)
    return problems + [Problem(key, f"{name} is named more than once", allowed="each column once") for name in repeated]


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
