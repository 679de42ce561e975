"""Declared tables: what a class becomes, which keys count, and every mistake at once."""

from __future__ import annotations

import textwrap
import warnings
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from ematix_flow.errors import DeclarationError
from ematix_flow.markers import natural_key, pk
from ematix_flow.normalize import default, derive, lower, trim
from ematix_flow.table import Column, ManagedTable, TableDefinition, resolve_merge_keys, snake_case, table
from ematix_flow.types import (
    BigInt,
    Boolean,
    Numeric,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)

SOURCE = """
    @table(schema="sales", name=None)
    class CustomerDim:
        '''Customers.'''
        customer_id: Annotated[BigInt, pk()]
        email: Annotated[String[256] | None, natural_key(), trim(), lower()]
        phone: BigInt | None
        fax: Optional[BigInt]
        note: Optional[String[5]]
        credit: Numeric[12, 2]
        seen: None | Timestamp
        active: Annotated[Boolean, nullable()]
        limit: ClassVar[int] = 3
"""
IMPORTS = """
from typing import Annotated, ClassVar, Optional
from ematix_flow.markers import natural_key, nullable, pk
from ematix_flow.normalize import lower, trim
from ematix_flow.table import table
from ematix_flow.types import BigInt, Boolean, Numeric, String, Timestamp
"""


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"], ids=["objects", "text"])
def test_annotations_become_columns(first: str) -> None:
    module: dict[str, Any] = {"__name__": "declared_here"}
    exec(compile(first + IMPORTS + textwrap.dedent(SOURCE), "declared_here.py", "exec", dont_inherit=True), module)
    cls = module["CustomerDim"]
    definition: TableDefinition = cls.__table__

    assert issubclass(cls, ManagedTable)
    assert (cls.__name__, cls.__doc__, cls.limit) == ("CustomerDim", "Customers.", 3)
    assert (definition.schema, definition.name, definition.full_name) == ("sales", "customer_dim", "sales.customer_dim")
    assert definition.columns == (
        Column(BigInt(), nullable=False, primary_key=True, name="customer_id"),
        Column(String[256], name="email", natural_keys=("",), normalizers=(trim(), lower())),
        Column(BigInt(), name="phone"),
        Column(BigInt(), name="fax"),
        Column(String[5], name="note"),
        Column(Numeric[12, 2], nullable=False, name="credit"),
        Column(Timestamp(), name="seen"),
        Column(Boolean(), name="active"),
    )
    assert definition.columns[1].expression == "lower(trim(`email`))"
    assert definition.primary_key == ("customer_id",)
    assert definition.unique_constraints == (("email",),)
    assert definition.declared_at.startswith("declared_here.py:")
    assert definition.spark_ddl.startswith("`customer_id` bigint NOT NULL, `email` string, ")


def test_a_table_declared_in_a_function_sees_the_functions_names() -> None:
    kind = String[7]

    @table()
    class Local:
        code: Annotated[kind, pk()]  # type: ignore[valid-type]

    assert Local.__table__.columns == (Column(String[7], nullable=False, primary_key=True, name="code"),)
    assert Local.__table__.full_name == "analytics.local"


def test_the_definition_is_frozen_and_compared_by_value() -> None:
    def declare() -> TableDefinition:
        @table(name="t")
        class Same:
            id: Annotated[BigInt, pk()]

        return Same.__table__

    first = declare()
    assert first == declare()
    assert hash(first) == hash(declare())
    with pytest.raises(FrozenInstanceError):
        first.name = "other"  # type: ignore[misc]


def test_constraints_partitions_and_groups() -> None:
    @table()
    class Orders:
        __merge_keys__ = ("shop", "number")
        __unique_constraints__ = (("number", "day"),)
        __partition_columns__ = ("day",)
        shop: Annotated[BigInt, natural_key("b")]
        number: Annotated[BigInt, natural_key("b")]
        code: Annotated[Text, natural_key("a")]
        day: Timestamp

    definition = Orders.__table__
    assert definition.merge_keys == ("shop", "number")
    assert definition.natural_keys == {"b": ("shop", "number"), "a": ("code",)}
    assert definition.unique_constraints == (("shop", "number"), ("code",), ("number", "day"))
    assert definition.partition_columns == ("day",)


def test_columns_of_a_base_class_come_first() -> None:
    class Tracked:
        id: Annotated[BigInt, pk()]

    @table()
    class Thing(Tracked):
        label: Text

    assert Thing.__table__.column_names == ("id", "label")


def test_a_class_may_inherit_from_managed_table() -> None:
    class Product(ManagedTable):
        __schema__ = "shop"
        __tablename__ = "products"
        sku = Column(String(40), nullable=False, primary_key=True)
        title: Text

    assert Product.__table__.full_name == "shop.products"
    assert set(Product.__table__.column_names) == {"sku", "title"}
    assert Product.__table__.primary_key == ("sku",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("CustomerDim", "customer_dim"), ("HTTPServer", "http_server"), ("Order2Item", "order2_item"), ("X", "x")],
)
def test_snake_case(name: str, expected: str) -> None:
    assert snake_case(name) == expected


def definition_of(*, merge_keys: tuple[str, ...] = (), natural: bool = False, primary: bool = True) -> TableDefinition:
    return TableDefinition(
        "s",
        "t",
        (
            Column(BigInt(), primary_key=primary, nullable=False, name="id"),
            Column(Text(), name="mail", natural_keys=("",) if natural else ()),
            Column(Text(), name="code"),
        ),
        merge_keys=merge_keys,
    )


class TestMergeKeys:
    def test_the_primary_key_is_the_last_resort(self) -> None:
        assert resolve_merge_keys(definition_of()) == ("id",)
        assert resolve_merge_keys(definition_of(primary=False)) == ()

    def test_a_natural_key_comes_before_it_with_a_warning(self) -> None:
        expected = r"s\.t merges by \(mail\) from natural_key\(\), not by its primary key \(id\); pass keys= to choose"
        with pytest.warns(UserWarning, match=expected):
            assert resolve_merge_keys(definition_of(natural=True)) == ("mail",)

    def test_declared_merge_keys_come_before_that(self) -> None:
        with pytest.warns(UserWarning, match=r"merges by \(code\) from __merge_keys__"):
            assert resolve_merge_keys(definition_of(natural=True, merge_keys=("code",))) == ("code",)

    def test_explicit_keys_win_in_silence(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert resolve_merge_keys(definition_of(natural=True, merge_keys=("code",)), ("mail", "id")) == (
                "mail",
                "id",
            )
            assert resolve_merge_keys(definition_of(natural=True), "code") == ("code",)

    @pytest.mark.parametrize("options", [{"merge_keys": ("id",)}, {"natural": True, "primary": False}])
    def test_no_warning_without_a_difference(self, options: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert resolve_merge_keys(definition_of(**options)) in (("id",), ("mail",))

    def test_unknown_keys_are_refused(self) -> None:
        with pytest.raises(DeclarationError) as caught:
            resolve_merge_keys(definition_of(), ("ID", "mial"))
        assert [str(problem) for problem in caught.value.problems] == [
            'keys: no column ID; allowed: id, mail, code; did you mean "id"?',
            'keys: no column mial; allowed: id, mail, code; did you mean "mail"?',
        ]


class TestAddedColumns:
    def test_audit(self) -> None:
        assert definition_of().audit_columns() == (
            Column(TimestampTZ(), nullable=False, name="_loaded_at"),
            Column(Text(), nullable=False, name="_batch_id"),
        )

    def test_history(self) -> None:
        added = [(c.name, c.type.spark_type, c.nullable) for c in definition_of().scd2_columns()]
        assert added == [
            ("valid_from", "timestamp", False),
            ("valid_to", "timestamp", True),
            ("is_current", "boolean", False),
            ("row_hash", "string", False),
        ]
        assert definition_of().scd2_primary_key(("id",)) == ("id", "valid_from")

    def test_what_the_table_declares_itself_is_not_added(self) -> None:
        own = TableDefinition("s", "t", (Column(TimestampTZ(), name="valid_from"), Column(Text(), name="_batch_id")))
        assert [c.name for c in own.scd2_columns()] == ["valid_to", "is_current", "row_hash"]
        assert [c.name for c in own.audit_columns()] == ["_loaded_at"]

    def test_a_declared_one_of_another_type_is_refused(self) -> None:
        own = TableDefinition("s", "t", (Column(Text(), name="valid_from"),))
        with pytest.raises(
            DeclarationError, match="valid_from: declared as Text; allowed: TimestampTZ, or leave it out"
        ):
            own.scd2_columns()


def problems_of(declare: Any) -> list[str]:
    """The problems of a declaration without their place, which is checked once."""
    with pytest.raises(DeclarationError) as caught:
        declare()
    assert all(p.file == __file__ and p.line for p in caught.value.problems)
    return [str(p).split(": ", 1)[1] for p in caught.value.problems]


class TestMistakes:
    def test_all_columns_at_once(self) -> None:
        def declare() -> None:
            @table()
            class Bad:
                a: int
                b: Bigint  # type: ignore[name-defined]  # noqa: F821
                c: Annotated[BigInt | None, pk()]
                d: Annotated[Text, trim]
                e: String
                f: String[0]
                g: Annotated[Text, lower(), derive("a || b")]
                h: Text = "new"  # type: ignore[assignment]

        kinds = (
            "SmallInt, Integer, BigInt, Float, Double, Boolean, Text, String, Numeric, Date, Timestamp, TimestampTZ, "
            "JSON, JSONB, UUID, Bytes"
        )
        assert problems_of(declare) == [
            f'a: int is not a column type; allowed: {kinds}; did you mean "BigInt"?',
            f'b: unknown name Bigint in Bigint; allowed: {kinds}; did you mean "BigInt"?',
            "c: a primary key that may be NULL; allowed: pk() on a type without | None",
            "d: trim is not called; allowed: trim(...)",
            "e: String without its size; allowed: String[256], or Text",
            "f.length: 0; allowed: a whole number from 1; Text has no limit",
            "g: derive('a || b') after lower() would throw its result away; allowed: derive(...) first",
            "h: = 'new' has no effect; allowed: Annotated[..., default('new')]",
        ]

    def test_all_keys_at_once(self) -> None:
        def declare() -> None:
            @table(name="")
            class Bad:
                __merge_keys__ = ("idd", "id", "id")
                __unique_constraints__ = (("id", "mial"),)
                __partition_columns__ = ("day",)
                id: BigInt
                ID: BigInt
                mail: Text
                _batch_id: BigInt

        columns = "allowed: id, ID, mail, _batch_id"
        assert problems_of(declare) == [
            "name: empty",
            "ID: differs from the column id only in case; allowed: distinct names",
            f'__merge_keys__: no column idd; {columns}; did you mean "id"?',
            "__merge_keys__: id is named more than once; allowed: each column once",
            f"__partition_columns__: no column day; {columns}",
            f'__unique_constraints__: no column mial; {columns}; did you mean "mail"?',
            "_batch_id: declared as BigInt; allowed: Text, or leave it out",
        ]

    def test_a_table_without_columns(self) -> None:
        def declare() -> None:
            @table()
            class Empty:
                pass

        assert problems_of(declare) == ["no columns; allowed: annotations such as id: Annotated[BigInt, pk()]"]

    def test_other_makers_of_classes(self) -> None:
        def declare() -> None:
            @table()
            @dataclass
            class Twice:
                id: BigInt

        assert problems_of(declare) == ["the class is also made by @dataclass; allowed: a plain annotated class"]

    def test_a_keyword_that_the_decorator_does_not_know(self) -> None:
        with pytest.raises(
            DeclarationError, match='shema: unknown keyword; allowed: schema, name; did you mean "schema"'
        ):
            table(shema="main")

    def test_the_decorator_without_parentheses(self) -> None:
        with pytest.raises(DeclarationError, match=r"table Bare: 1 problem\n.*allowed: @ematix\.table\(\)"):

            @table  # type: ignore[arg-type]
            class Bare:
                id: BigInt


def test_what_other_libraries_annotate_is_left_alone() -> None:
    @table()
    class Documented:
        id: Annotated[BigInt, "the number on the invoice", len, pk()]
        city: Annotated[Text, default("unknown")]

    assert Documented.__table__.primary_key == ("id",)
    assert Documented.__table__.columns[1].expression == "coalesce(`city`, 'unknown')"


def test_a_definition_can_be_a_field_of_a_model() -> None:
    class Holder(BaseModel):
        definition: TableDefinition | None = None

    definition = definition_of()
    assert Holder(definition=definition).definition is definition
    assert Holder.model_json_schema()["properties"]["definition"]


def test_a_table_tells_its_schema_name_and_columns() -> None:
    @table(schema="crm")
    class CustomerDim:
        id: Annotated[BigInt, pk(order=1)]

    assert (CustomerDim.__schema__, CustomerDim.__tablename__) == ("crm", "customer_dim")
    assert [column.name for column in CustomerDim.__columns__] == ["id"]
