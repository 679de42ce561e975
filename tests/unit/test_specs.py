"""What a frozen spec answers, and the rules between its fields that are about meaning rather than mistakes."""

import inspect
import warnings
from pathlib import Path
from typing import Annotated

import pydantic
import pytest

from ematix_flow import (
    CDC,
    Aggregation,
    DeltaLocalConnection,
    DuckDBConnection,
    Join,
    KafkaConnection,
    Lookup,
    Source,
    StateStore,
    Target,
    Watermark,
    Window,
    ematix,
    natural_key,
    pk,
    udaf,
)
from ematix_flow.errors import DeclarationError
from ematix_flow.specs import CDCTable, PipelineSpec, SparkSettings, TableRef, Transform
from ematix_flow.types import BigInt, Text

DUCKDB = DuckDBConnection(path="x.duckdb")
KAFKA = KafkaConnection(bootstrap_servers="broker:9092")
COUNT = Aggregation("count", "n")


def pipeline(*sources: Source, to: tuple[Target, ...] = (Target("out"),), **fields: object) -> PipelineSpec:
    return PipelineSpec(name="p", sources=sources or (Source("in"),), targets=to, **fields)


def keys_of_problems(refused: pytest.ExceptionInfo[DeclarationError]) -> list[str]:
    return [problem.key for problem in refused.value.problems]


def test_source_names_are_unique() -> None:
    spec = pipeline(Source("a"), Source("b"), Source("c", "q"), Source("d", "q"), Source("e", "q", "orders"))
    assert spec.source_names == ("source", "source_2", "q", "q_2", "orders")


def test_a_made_up_name_never_takes_a_given_one() -> None:
    assert pipeline(Source("a", "q"), Source("b", "q"), Source("c", name="q_2")).source_names == ("q", "q_2", "q_2_2")


def test_target_names_are_unique() -> None:
    targets = (
        Target(DUCKDB, table=("main", "t")),
        Target(DUCKDB, table="t"),
        Target(KAFKA, topic="t"),
        Target("anything"),
        Target(DeltaLocalConnection(path="lake")),
    )
    assert pipeline(to=targets).target_names == ("main.t", "t", "t_2", "anything", "delta_local")


def test_defaults() -> None:
    spec = pipeline()
    assert spec.state_store == StateStore(kind="local", schema="public", checkpoint_interval_ms=60_000)
    assert spec.watermark == Watermark(lateness_ms=0, source_idleness_ms=60_000)
    assert (spec.dlq_store, spec.dlq_max_attempts, spec.delivery, spec.idle_pause_ms) == (
        "auto",
        3,
        "at_least_once",
        500,
    )
    assert (spec.transform.on_error, spec.transform.dialect, spec.targets[0].mode) == ("fail", "spark", "append")
    assert (CDC().truncate_mode, CDC().unlisted, CDC().schema_evolution) == ("apply", "fail", "skip")


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        pipeline().name = "other"


@pytest.mark.parametrize("table", [("s", "t"), ["s", "t"], "s.t", {"schema": "s", "name": "t"}])
def test_a_table_can_be_written_in_several_ways(table: object) -> None:
    assert Target(DUCKDB, table=table).table == TableRef(schema="s", name="t")


def test_the_primary_key_stands_in_both_places() -> None:
    beside = Target(DUCKDB, table="t", primary_key=["id"])
    inside = Target(DUCKDB, table={"name": "t", "primary_key": ["id"]})
    assert beside == inside
    assert beside.table is not None
    assert beside.primary_key == beside.table.primary_key == ("id",)


def test_a_declared_table_brings_its_definition_and_keys() -> None:
    @ematix.table(schema="shop")
    class OrderLine:
        id: Annotated[BigInt, pk()]
        note: Text

    target = Target(DUCKDB, table=OrderLine, mode="merge")
    assert target.table is not None
    assert target.table.full_name == "shop.order_line"
    assert target.table.definition is OrderLine.__table__
    assert target.merge_keys == ("id",)
    with pytest.raises(DeclarationError, match='keys\\[0\\]: found "note_"') as refused:
        Target(DUCKDB, table=OrderLine, mode="merge", keys=["note_"])
    assert refused.value.problems[0].suggestion == "note"


def test_natural_keys_come_before_the_primary_key_and_say_so() -> None:
    @ematix.table(schema="shop")
    class Customer:
        id: Annotated[BigInt, pk()]
        email: Annotated[Text, natural_key()]

    with pytest.warns(UserWarning, match="merges by"):
        assert Target(DUCKDB, table=Customer).merge_keys == ("email",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Target(DUCKDB, table=Customer, keys=["id"]).merge_keys == ("id",)


def test_a_named_connection_leaves_its_kind_open() -> None:
    assert Target("out", topic="t", table="t").kind is None


def test_join_deltas() -> None:
    assert Join("a", "b", ["id"], ["id"], time_window_ms=5).deltas == (-5, 5)
    assert Join("a", "b", ["id"], ["id"], min_delta_ms=-1, max_delta_ms=9).deltas == (-1, 9)


def test_a_join_may_be_followed_by_a_window() -> None:
    join = Join("a", "b", ["id"], ["id"], time_window_ms=5)
    transform = Transform(join=join, window=Window("tumbling", [COUNT], 1000))
    spec = pipeline(Source("x", name="a"), Source("x", name="b"), transform=transform)
    assert spec.transform.join is join


def test_a_tumbling_window_may_say_its_hop() -> None:
    assert Window("tumbling", [COUNT], 1000, 1000).hop_ms == 1000


def test_an_own_aggregate_is_known_where_it_is_given() -> None:
    @udaf(["double"], ["double"], "double", name="geometric_mean")
    class GeometricMean:
        def update_batch(self, values: object) -> None: ...
        def merge_batch(self, states: object) -> None: ...
        def state(self) -> None: ...
        def evaluate(self) -> None: ...

    window = Window("tumbling", [Aggregation("geometric_mean", "g", "x")], 1000)
    assert Transform(window=window, aggregate_udfs=[GeometricMean]).window == window
    with pytest.raises(DeclarationError, match='found "geometric_mean"'):
        Transform(window=window)


def test_many_tables_need_no_table_and_no_keys_of_the_target() -> None:
    cdc = CDC(tables={"shop.orders": CDCTable("orders", ["id"])})
    spec = pipeline(to=(Target(DUCKDB, mode="merge"),), transform=Transform(cdc=cdc))
    assert spec.targets[0].table is None


def test_a_dead_letter_topic_makes_up_for_an_in_memory_store() -> None:
    fields = {"transform": Transform(on_error="dlq"), "state_store": StateStore("in_memory")}
    assert pipeline(**fields, dead_letter_topic="dead").dead_letter_topic == "dead"
    with pytest.raises(DeclarationError):
        pipeline(**fields)


def test_rules_run_on_what_is_right() -> None:
    """A misspelt key in one target hides neither the missing keys of another nor the unknown source of the join."""
    with pytest.raises(DeclarationError) as refused:
        PipelineSpec(
            "p",
            [Source("in", name="a"), Source("in", name="b")],
            [{"connection": DUCKDB, "table": "t", "mode": "merge"}, {"connection": DUCKDB, "tabel": "t"}],
            {
                "join": {
                    "left_source": "a",
                    "right_source": "c",
                    "left_keys": ["id"],
                    "right_keys": [],
                    "time_window_ms": 1,
                }
            },
        )
    assert keys_of_problems(refused) == [
        "targets[1].tabel",
        "transform.join.right_keys",
        "transform.join.right_source",
        "targets[1].table",
        "targets[0].keys",
    ]


def test_an_error_knows_which_line_of_the_user_raised_it() -> None:
    with pytest.raises(DeclarationError) as refused:
        Window("hopping", [COUNT], 1000)
    line = test_an_error_knows_which_line_of_the_user_raised_it.__code__.co_firstlineno + 2
    origin = f"{Path(__file__).relative_to(Path.cwd())}:{line}"
    assert refused.value.origin == origin
    assert str(refused.value).startswith(f"Window ({origin}): 1 problem\n")


def test_a_url_is_no_name_and_is_not_repeated() -> None:
    with pytest.raises(DeclarationError) as refused:
        Source("postgresql://me:hunter2@db/shop", "orders")
    assert str(refused.value).endswith(
        "  - connection: found a URL; allowed: a connection, such as PostgresConnection(url=...), or the name of one"
    )


def test_rules_about_the_kind_apply_once_the_connections_are_known() -> None:
    spec = pipeline(Source("broker", "orders"), to=(Target("broker", topic="t"), Target("db", topic="t")))
    known = {"broker": KAFKA, "db": DUCKDB}
    with pytest.raises(DeclarationError) as refused:
        spec.with_connections(known.__getitem__)
    assert keys_of_problems(refused) == ["targets[1].topic", "targets[1].table"]
    fine = pipeline(Source("broker", "orders"), to=(Target("db", table="t"),)).with_connections(known.__getitem__)
    assert (fine.sources[0].connection, fine.targets[0].connection) == (KAFKA, DUCKDB)


def test_fields_by_position_follow_the_reference() -> None:
    assert Lookup("db", "customers", "crm", 1000) == Lookup(
        connection="db", table="customers", schema="crm", refresh_interval_ms=1000
    )
    shown = list(inspect.signature(Window).parameters)
    assert shown[:3] == ["kind", "aggregations", "duration_ms"]
    assert inspect.signature(Watermark).parameters["source_idleness_ms"].default == 60_000


def test_short_forms_mean_the_long_ones() -> None:
    short = CDC("custom", "op", after_field="after", op_map={"I": "c", "D": "d"})
    assert short.op_map == {"I": "create", "D": "delete"}
    assert Aggregation("count_distinct", "n", "id", "approx").mode == "approximate"
    assert KafkaConnection("k", "h:9092", extra={"a": 1, "b": True}).extra == {"a": "1", "b": "true"}


def test_a_join_may_wait_for_late_rows_whatever_happens_to_later_ones() -> None:
    join = Join("l", "r", ["id"], ["id"], time_window_ms=1, late_data="drop", allowed_lateness_ms=5)
    assert join.allowed_lateness_ms == 5
    with pytest.raises(DeclarationError, match="allowed_lateness_ms: missing"):
        Join("l", "r", ["id"], ["id"], time_window_ms=1, late_data="reopen")


def test_a_local_state_store_may_have_a_folder() -> None:
    assert StateStore("local", path="/state").path == "/state"
    with pytest.raises(DeclarationError, match="path: has no meaning with kind = "):
        StateStore("in_memory", path="/state")


@pytest.mark.parametrize("name", ["source", "Source", "orders"])
def test_a_lookup_cannot_have_the_name_of_a_stream(name: str) -> None:
    lookups = {name: Lookup(DUCKDB, "t")}
    with pytest.raises(DeclarationError) as refused:
        pipeline(Source(KAFKA, "topic", "orders"), transform=Transform(lookups=lookups))
    assert keys_of_problems(refused) == [f"transform.lookups.{name}"]
    pipeline(Source(KAFKA, "orders"), transform=Transform(lookups={"orders": Lookup(DUCKDB, "t")}))


def test_what_a_spec_shows_has_no_secrets() -> None:
    spec = pipeline(
        Source("in"),
        state_store=StateStore("postgres", "postgresql://me:hunter2@h/db"),
        spark=SparkSettings(conf={"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.executor.cores": 2}),
    )
    for shown in (repr(spec), str(spec), repr(spec.state_store), repr(spec.spark)):
        assert "hunter2" not in shown
    assert "spark.executor.cores': '2'" in repr(spec.spark)
