"""The targets of many tables, and how changes that came too late are counted; no Spark."""

import pytest

from ematix_flow import CDC, DuckDBConnection, ObjectStoreLocalConnection
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.sinks.changes import AT_LENGTH, too_late
from ematix_flow.specs import PipelineSpec, Source, Target, Transform
from ematix_flow.streams.change_tables import by_key, found_table, listed_tables, with_tables


def pipeline(target: Target, **cdc: object) -> PipelineSpec:
    return PipelineSpec(
        name="p",
        sources=[Source(connection=ObjectStoreLocalConnection(path="in", format="json_lines"))],
        targets=[target],
        transform=Transform(cdc=CDC(**cdc)),  # type: ignore[arg-type]
    )


def duckdb(**more: object) -> Target:
    return Target(connection=DuckDBConnection(path="a.duckdb"), **more)  # type: ignore[arg-type]


TABLES = {"s.a": {"table": "a", "keys": ["x"]}, "s.b": {"table": "other.b"}}


def test_each_table_has_its_target_with_its_key_and_schema() -> None:
    spec = by_key(pipeline(duckdb(table=("main", "unused"), keys=["id"]), tables=TABLES))
    listed = with_tables(spec)
    assert listed.target_names == ("main.a", "other.b")
    assert [target.merge_keys for target in listed.targets] == [("x",), ("id",)]
    assert {target.mode for target in listed.targets} == {"merge"}


def test_a_table_without_a_key_is_named() -> None:
    with pytest.raises(DeclarationError, match=r'transform.cdc.tables."s.b".keys: missing'):
        by_key(pipeline(duckdb(), tables=TABLES))


def test_a_table_that_is_found_needs_a_key_and_a_name_of_its_own() -> None:
    spec = by_key(pipeline(duckdb(), tables={"s.a": TABLES["s.a"]}, unlisted="create"))
    known = listed_tables(spec, {})
    assert found_table(spec, "s.c", ("id",), known).spec.targets[0].merge_keys == ("id",)
    with pytest.raises(FlowError, match=r"the key of table s.c is not known"):
        found_table(spec, "s.c", (), known)
    with pytest.raises(FlowError, match=r"tables s.a and t.a would both become a"):
        found_table(spec, "t.a", ("id",), known)


def test_changes_before_the_gate_count_as_skipped() -> None:
    places = [str(place).zfill(AT_LENGTH) for place in (1, 2, 3)]
    staged = "".join(op + place for op, place in zip("cud", places, strict=True))
    assert too_late([(places[2], staged), (places[0], staged)]) == {
        "creates": -1, "updates": -1, "idempotent_skipped": 2,
    }  # fmt: skip
