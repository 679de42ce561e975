"""Python and TOML are two doors to one spec: for every key of every model, both say the same."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from ematix_flow import (
    CDC,
    Aggregation,
    DeltaLocalConnection,
    DuckDBConnection,
    Join,
    KafkaConnection,
    KinesisConnection,
    Lookup,
    ObjectStoreLocalConnection,
    PostgresConnection,
    RabbitMQConnection,
    RedisConnection,
    Source,
    StateStore,
    Target,
    Watermark,
    Window,
)
from ematix_flow.connections import Connection
from ematix_flow.keywords import PLACES, spec_from_keywords
from ematix_flow.model import Declared
from ematix_flow.specs import CDCTable, PipelineSpec, SparkSettings, TableRef, Transform
from ematix_flow.toml import load_toml

FILES = ObjectStoreLocalConnection(path="in", format="csv")
OUT = ObjectStoreLocalConnection(path="out", format="csv")
KAFKA = KafkaConnection(bootstrap_servers="broker:9092")
DUCKDB = DuckDBConnection(path="x.duckdb")

IN_TOML = '[source]\nkind = "object_store_local"\npath = "in"\nformat = "csv"\n'
OUT_TOML = '[target]\nkind = "object_store_local"\npath = "out"\nformat = "csv"\n'
COUNT = Aggregation("count", "n")
WINDOW = '[transform.window]\nkind = "tumbling"\nduration_ms = 1000\naggregations = [{agg = "count", as = "n"}]\n'
SESSION = '[transform.window]\nkind = "session"\ngap_ms = 1000\naggregations = [{agg = "count", as = "n"}]\n'
SIDES = 'left_source = "a"\nright_source = "b"\nleft_keys = ["id"]\nright_keys = ["id"]\n'
TWO = "\n".join(f'[[sources]]\nconnection = "files"\nname = "{name}"' for name in "ab")


def source(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return IN_TOML + toml + "\n" + OUT_TOML, {"sources": [Source(FILES, **fields)], "target": OUT}


def target(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return IN_TOML + OUT_TOML + toml, {"source": FILES, "targets": [Target(OUT, **fields)]}


def target_of(connection: Connection, head: str, toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return f"{IN_TOML}[target]\n{head}\n{toml}\n", {"source": FILES, "targets": [Target(connection, **fields)]}


def kafka(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return target_of(KAFKA, 'kind = "kafka"\nbootstrap_servers = "broker:9092"', toml, **fields)


def duckdb(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return target_of(DUCKDB, 'kind = "duckdb"\npath = "x.duckdb"', toml, **fields)


def of_table(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    place = 'kind = "duckdb"\npath = "x.duckdb"\nquery = "t"'
    return f"[source]\n{place}\n{toml}\n{OUT_TOML}", {"sources": [Source(DUCKDB, "t", **fields)], "target": OUT}


def merged(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Of a table that is seen whole."""
    place = 'kind = "duckdb"\npath = "x.duckdb"'
    kept = f'[target]\n{place}\ntable = "t"\nmode = "merge"\nkeys = ["id"]\n{toml}\n'
    targets = [Target(DUCKDB, "t", mode="merge", keys=["id"], **fields)]
    return f'[source]\n{place}\nquery = "s"\n{kept}', {"sources": [Source(DUCKDB, "s")], "targets": targets}


def both(toml: str, **keywords: Any) -> tuple[str, dict[str, Any]]:
    """A table or key of the document beside the usual source and target."""
    return toml + "\n" + IN_TOML + OUT_TOML if "[" not in toml else IN_TOML + OUT_TOML + toml, {
        "source": FILES,
        "target": OUT,
        **keywords,
    }


def window(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return both(WINDOW + toml, window=Window("tumbling", [COUNT], 1000, **fields))


def session(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return both(SESSION + toml, window=Window("session", [COUNT], gap_ms=1000, **fields))


def aggregation(toml: str, *fields: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    head = '[transform.window]\nkind = "tumbling"\nduration_ms = 1000\n[[transform.window.aggregations]]\n'
    return both(head + toml, window=Window("tumbling", [Aggregation(*fields, **more)], 1000))


def join(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    sources = [Source("files", name="a"), Source("files", name="b")]
    declared = Join("a", "b", ["id"], ["id"], **fields)
    return f"{TWO}\n{OUT_TOML}[transform.join]\n{SIDES}{toml}", {"sources": sources, "target": OUT, "join": declared}


def cdc(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return both("[transform.cdc]\n" + toml, cdc=CDC(**fields))


def lookup(toml: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return both("[transform.lookups.names]\n" + toml, lookups={"names": Lookup(**fields)})


RABBIT = RabbitMQConnection(amqp_url="amqp://broker")
RABBIT_TOML = 'kind = "rabbitmq"\namqp_url = "amqp://broker"'
KINESIS = KinesisConnection(stream_name="s", region="eu-west-1")
KINESIS_TOML = 'kind = "kinesis"\nstream_name = "s"\nregion = "eu-west-1"'
REDIS = RedisConnection(url="redis://cache")
REDIS_TOML = 'kind = "redis"\nurl = "redis://cache"'
DELTA = DeltaLocalConnection(path="lake")

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "PipelineSpec.name": both(""),
    "PipelineSpec.sources": (
        f'[[sources]]\nconnection = "a"\n[[sources]]\nconnection = "b"\nquery = "q"\n{OUT_TOML}',
        {"sources": [Source("a"), Source("b", "q")], "target": OUT},
    ),
    "PipelineSpec.targets": (
        f'{IN_TOML}[[targets]]\nconnection = "a"\n[[targets]]\nconnection = "b"\nprefix = "p"\n',
        {"source": FILES, "targets": [Target("a"), Target("b", prefix="p")]},
    ),
    "PipelineSpec.transform": both('[transform]\nsql = "select 1"', transform_sql="select 1"),
    "PipelineSpec.state_store": both("[state_store]", state_store=StateStore()),
    "PipelineSpec.watermark": both("[watermark]", watermark=Watermark()),
    "PipelineSpec.dead_letter_topic": both('dead_letter_topic = "dead"', dead_letter_topic="dead"),
    "PipelineSpec.dlq_store": both('dlq_store = "table"', dlq_store="table"),
    "PipelineSpec.dlq_max_attempts": both("dlq_max_attempts = 7", dlq_max_attempts=7),
    "PipelineSpec.delivery": both('delivery = "exactly_once"', delivery="exactly_once"),
    "PipelineSpec.trigger_interval_ms": both("trigger_interval_ms = 9", trigger_interval_ms=9),
    "PipelineSpec.batch_bytes": both("batch_bytes = 9", batch_bytes=9),
    "PipelineSpec.idle_pause_ms": both("idle_pause_ms = 9", idle_pause_ms=9),
    "PipelineSpec.metrics_port": both("metrics_port = 9100", metrics_port=9100),
    "PipelineSpec.spark": both('[spark]\nmaster = "local[2]"', spark={"master": "local[2]"}),
    "SparkSettings.master": both('[spark]\nmaster = "local[2]"', spark=SparkSettings("local[2]")),
    "SparkSettings.state_buckets": both("[spark]\nstate_buckets = 64", spark=SparkSettings(state_buckets=64)),
    "SparkSettings.conf": both('[spark.conf]\n"spark.x" = 8', spark=SparkSettings(conf={"spark.x": "8"})),
    "Source.connection": (f'[source]\nconnection = "files"\n{OUT_TOML}', {"source": "files", "target": OUT}),
    "Source.query": source('query = "2026/*"', query="2026/*"),
    "Source.name": source('name = "orders"', name="orders"),
    "Source.schema": source('schema = "id long"', schema="id long"),
    "Source.event_time_column": source('event_time_column = "at"', event_time_column="at"),
    "Source.max_rows_per_batch": source("max_rows_per_batch = 5", max_rows_per_batch=5),
    "Source.max_files_per_batch": source("max_files_per_batch = 5", max_files_per_batch=5),
    "Source.on_data_loss": (
        '[source]\nkind = "kafka"\nbootstrap_servers = "broker:9092"\nquery = "t"\non_data_loss = "skip"\n' + OUT_TOML,
        {"sources": [Source(KAFKA, "t", on_data_loss="skip")], "target": OUT},
    ),
    "Source.start": (
        f'[source]\nkind = "kafka"\nbootstrap_servers = "broker:9092"\nquery = "t"\nstart = 500\n{OUT_TOML}',
        {"sources": [Source(KAFKA, "t", start=500)], "target": OUT},
    ),
    "Source.change_feed": (
        '[source]\nkind = "delta_local"\npath = "lake"\nchange_feed = true\n' + OUT_TOML,
        {"sources": [Source(DELTA, change_feed=True)], "target": OUT},
    ),
    "Source.snapshot": (
        '[source]\nkind = "delta_local"\npath = "lake"\nsnapshot = true\n' + OUT_TOML,
        {"sources": [Source(DELTA, snapshot=True)], "target": OUT},
    ),
    "Source.incremental_column": of_table('incremental_column = "id"', incremental_column="id"),
    "Source.keys": of_table('incremental_column = "at"\nkeys = ["id"]', incremental_column="at", keys=["id"]),
    "Source.lookback": of_table('incremental_column = "at"\nlookback = 5', incremental_column="at", lookback=5),
    "Source.csv_delimiter": source('csv_delimiter = ";"', csv_delimiter=";"),
    "Source.csv_header": source("csv_header = false", csv_header=False),
    "Source.csv_quote": source('csv_quote = "\'"', csv_quote="'"),
    "Source.csv_escape": source("csv_escape = '\\'", csv_escape="\\"),
    "Source.csv_null_value": source('csv_null_value = "NA"', csv_null_value="NA"),
    "Target.connection": (f'{IN_TOML}[target]\nconnection = "out"\n', {"source": FILES, "target": "out"}),
    "Target.table": duckdb('table = ["main", "t"]', table=("main", "t")),
    "Target.topic": kafka('topic = "t"', topic="t"),
    "Target.queue": target_of(RABBIT, RABBIT_TOML, 'queue = "q"', queue="q"),
    "Target.exchange": target_of(RABBIT, RABBIT_TOML, 'exchange = "e"', exchange="e"),
    "Target.routing_key": target_of(
        RABBIT, RABBIT_TOML, 'exchange = "e"\nrouting_key = "k"', exchange="e", routing_key="k"
    ),
    "Target.stream": target_of(REDIS, REDIS_TOML, 'stream = "s"', stream="s"),
    "Target.key_prefix": target_of(REDIS, REDIS_TOML, 'key_prefix = "k:"', key_prefix="k:"),
    "Target.prefix": target('prefix = "p"', prefix="p"),
    "Target.partition_by": target('partition_by = ["day"]', partition_by=["day"]),
    "Target.partition_key_prefix": target_of(
        KINESIS, KINESIS_TOML, 'partition_key_prefix = "p"', partition_key_prefix="p"
    ),
    "Target.partition_key_column": target_of(
        KINESIS, KINESIS_TOML, 'partition_key_column = "c"', partition_key_column="c"
    ),
    "Target.message_key_column": kafka('topic = "t"\nmessage_key_column = "id"', topic="t", message_key_column="id"),
    "Target.headers_column": kafka('topic = "t"\nheaders_column = "h"', topic="t", headers_column="h"),
    "Target.partition_column": kafka('topic = "t"\npartition_column = "p"', topic="t", partition_column="p"),
    "Target.topic_column": kafka('topic_column = "t"', topic_column="t"),
    "Target.schema_registration": target_of(
        KafkaConnection(bootstrap_servers="broker:9092", payload_format="avro"),
        'kind = "kafka"\nbootstrap_servers = "broker:9092"\npayload_format = "avro"',
        'topic = "t"\nschema_registration = "check"',
        topic="t",
        schema_registration="check",
    ),
    "Target.primary_key": duckdb('table = "t"\nprimary_key = ["id"]', table="t", primary_key=["id"]),
    "Target.mode": duckdb('table = "t"\nmode = "scd1"\nkeys = ["id"]', table="t", mode="merge", keys=["id"]),
    "Target.keys": duckdb('table = "t"\nkeys = ["id"]', table="t", keys=["id"]),
    "Target.update_columns": merged('update_columns = ["a"]', update_columns=["a"]),
    "Target.compare_columns": merged('compare_columns = ["a"]', compare_columns=["a"]),
    "Target.handle_deletes": merged('handle_deletes = "soft"', handle_deletes="soft"),
    "Target.ttl": duckdb(
        'table = "t"\nmode = "scd2"\nkeys = ["id"]\nttl = "30d"',
        table="t",
        mode="scd2",
        keys=["id"],
        ttl=timedelta(days=30),
    ),
    "Target.on_drift": duckdb('table = "t"\non_drift = "evolve"', table="t", on_drift="evolve"),
    "Target.parquet_compression": target('parquet_compression = "zstd"', parquet_compression="zstd"),
    "Target.csv_delimiter": target('csv_delimiter = ";"', csv_delimiter=";"),
    "Target.csv_header": target("csv_header = false", csv_header=False),
    "Target.csv_quote": target('csv_quote = "\'"', csv_quote="'"),
    "Target.csv_escape": target("csv_escape = '\\'", csv_escape="\\"),
    "Target.csv_null_value": target('csv_null_value = "NA"', csv_null_value="NA"),
    "TableRef.schema": duckdb('[target.table]\nschema = "main"\nname = "t"', table=TableRef(schema="main", name="t")),
    "TableRef.name": duckdb('[target.table]\nname = "t"', table="t"),
    "TableRef.primary_key": duckdb(
        '[target.table]\nname = "t"\nprimary_key = ["id"]', table=TableRef(name="t", primary_key=["id"])
    ),
    "Transform.sql": both('[transform]\nsql = "select 1"', transform_sql="select 1"),
    "Transform.on_error": both('[transform]\non_error = "drop"', transform_on_error="drop"),
    "Transform.dialect": both('[transform]\ndialect = "duckdb"', dialect="duckdb"),
    "Transform.lookups": lookup('connection = "pg"\ntable = "t"', connection="pg", table="t"),
    "Transform.window": window(""),
    "Transform.join": join("time_window_ms = 5", time_window_ms=5),
    "Transform.cdc": cdc(""),
    "Lookup.connection": lookup(
        'kind = "postgres"\ndsn = "postgresql://db/x"\ntable = "t"',
        connection=PostgresConnection(url="postgresql://db/x"),
        table="t",
    ),
    "Lookup.table": lookup('connection = "pg"\ntable = "t"', connection="pg", table="t"),
    "Lookup.query": lookup('connection = "pg"\nquery = "select 1"', connection="pg", query="select 1"),
    "Lookup.schema": lookup('connection = "pg"\ntable = "t"\nschema = "s"', connection="pg", table="t", schema="s"),
    "Lookup.refresh_interval_ms": lookup(
        'connection = "pg"\ntable = "t"\nrefresh_interval_ms = 9', connection="pg", table="t", refresh_interval_ms=9
    ),
    "Window.kind": session(""),
    "Window.aggregations": window(""),
    "Window.duration_ms": window(""),
    "Window.hop_ms": both(
        WINDOW.replace("tumbling", "hopping") + "hop_ms = 500", window=Window("hopping", [COUNT], 1000, 500)
    ),
    "Window.gap_ms": session(""),
    "Window.max_session_duration_ms": session("max_session_duration_ms = 9", max_session_duration_ms=9),
    "Window.event_time_column": window('event_time_column = "at"', event_time_column="at"),
    "Window.group_by": window('group_by = ["shop"]', group_by=["shop"]),
    "Window.late_data": window('late_data = "dlq"', late_data="dlq"),
    "Window.allowed_lateness_ms": window(
        'late_data = "reopen"\nallowed_lateness_ms = 0', late_data="reopen", allowed_lateness_ms=0
    ),
    "Window.max_groups_per_window": window("max_groups_per_window = 9", max_groups_per_window=9),
    "Window.window_start_column": window('window_start_column = "s"', window_start_column="s"),
    "Window.window_end_column": window('window_end_column = "e"', window_end_column="e"),
    "Window.session_id_column": session('session_id_column = "i"', session_id_column="i"),
    "Aggregation.agg": aggregation('agg = "count"\nas = "n"', "count", "n"),
    "Aggregation.as": aggregation('agg = "count"\nas = "orders"', agg="count", as_="orders"),
    "Aggregation.column": aggregation('agg = "sum"\nas = "n"\ncolumn = "c"', "sum", "n", "c"),
    "Aggregation.mode": aggregation(
        'agg = "count_distinct"\nas = "n"\ncolumn = "c"\nmode = "exact"', "count_distinct", "n", "c", "exact"
    ),
    "Aggregation.max_distinct_values_per_group": aggregation(
        'agg = "collect_set"\nas = "n"\ncolumn = "c"\nmax_distinct_values_per_group = 9',
        "collect_set",
        "n",
        "c",
        max_distinct_values_per_group=9,
    ),
    "Join.left_source": join("time_window_ms = 5", time_window_ms=5),
    "Join.right_source": join("time_window_ms = 5", time_window_ms=5),
    "Join.left_keys": join("time_window_ms = 5", time_window_ms=5),
    "Join.right_keys": join("time_window_ms = 5", time_window_ms=5),
    "Join.time_window_ms": join("time_window_ms = 5", time_window_ms=5),
    "Join.min_delta_ms": join("min_delta_ms = -5\nmax_delta_ms = 5", min_delta_ms=-5, max_delta_ms=5),
    "Join.max_delta_ms": join("min_delta_ms = 0\nmax_delta_ms = 0", min_delta_ms=0, max_delta_ms=0),
    "Join.kind": join('time_window_ms = 5\nkind = "full_outer"', time_window_ms=5, kind="full_outer"),
    "Join.event_time_column": join(
        'time_window_ms = 5\nevent_time_column = "at"', time_window_ms=5, event_time_column="at"
    ),
    "Join.late_data": join('time_window_ms = 5\nlate_data = "dlq"', time_window_ms=5, late_data="dlq"),
    "Join.allowed_lateness_ms": join(
        'time_window_ms = 5\nlate_data = "reopen"\nallowed_lateness_ms = 9',
        time_window_ms=5,
        late_data="reopen",
        allowed_lateness_ms=9,
    ),
    "Join.left_column_prefix": join(
        'time_window_ms = 5\nleft_column_prefix = "l"', time_window_ms=5, left_column_prefix="l"
    ),
    "Join.right_column_prefix": join(
        'time_window_ms = 5\nright_column_prefix = ""', time_window_ms=5, right_column_prefix=""
    ),
    "CDC.envelope": cdc('envelope = "maxwell"', envelope="maxwell"),
    "CDC.op_field": cdc('op_field = "a.b"', op_field="a.b"),
    "CDC.before_field": cdc('before_field = "a.b"', before_field="a.b"),
    "CDC.after_field": cdc('after_field = "a.b"', after_field="a.b"),
    "CDC.key_field": cdc('key_field = "a.b"', key_field="a.b"),
    "CDC.ts_field": cdc('ts_field = "a.b"', ts_field="a.b"),
    "CDC.table_field": cdc(
        'table_field = "a.b"\n[transform.cdc.tables.t]\ntable = "u"', table_field="a.b", tables={"t": CDCTable("u")}
    ),
    "CDC.op_map": cdc('op_map = {I = "create"}', op_map={"I": "create"}),
    "CDC.delete_mode": cdc('delete_mode = "ignore"', delete_mode="ignore"),
    "CDC.soft_delete_column": cdc(
        'delete_mode = "soft"\nsoft_delete_column = "gone"', delete_mode="soft", soft_delete_column="gone"
    ),
    "CDC.truncate_mode": cdc('truncate_mode = "fail"', truncate_mode="fail"),
    "CDC.transactional": cdc("transactional = true", transactional=True),
    "CDC.schema_evolution": cdc('schema_evolution = "evolve"', schema_evolution="evolve"),
    "CDC.tables": cdc('[transform.cdc.tables."s.t"]\ntable = "t"', tables={"s.t": CDCTable("t")}),
    "CDC.unlisted": cdc('unlisted = "create"', unlisted="create"),
    "CDCTable.table": cdc('[transform.cdc.tables.t]\ntable = "u"', tables={"t": CDCTable("u")}),
    "CDCTable.keys": cdc('[transform.cdc.tables.t]\ntable = "u"\nkeys = ["a"]', tables={"t": CDCTable("u", ["a"])}),
    "StateStore.kind": both('[state_store]\nkind = "in_memory"', state_store=StateStore("in_memory")),
    "StateStore.url": both(
        '[state_store]\nkind = "postgres"\nurl = "${STATE}"', state_store=StateStore("postgres", "${STATE}")
    ),
    "StateStore.path": both(
        '[state_store]\nkind = "delta"\npath = "/lake"', state_store=StateStore("delta", path="/lake")
    ),
    "StateStore.schema": both('[state_store]\nschema = "flow"', state_store=StateStore(schema="flow")),
    "StateStore.checkpoint_interval_ms": both(
        "[state_store]\ncheckpoint_interval_ms = 9", state_store=StateStore(checkpoint_interval_ms=9)
    ),
    "Watermark.lateness_ms": both("[watermark]\nlateness_ms = 9", watermark=Watermark(9)),
    "Watermark.source_idleness_ms": both("[watermark]\nsource_idleness_ms = 9", watermark=Watermark(0, 9)),
}

MODELS: tuple[type[BaseModel], ...] = (
    PipelineSpec, SparkSettings, Source, Target, TableRef, Transform, Lookup, Window, Aggregation, Join, CDC, CDCTable,
    StateStore, Watermark,
)  # fmt: skip


def every_key() -> list[str]:
    return [
        f"{model.__name__}.{field.alias or name}"
        for model in MODELS
        for name, field in model.model_fields.items()
        if not field.exclude
    ]


def keys_set_in(value: Any) -> set[str]:
    """The keys that were given, anywhere in a spec."""
    if isinstance(value, dict):
        return set().union(*map(keys_set_in, value.values()))
    if isinstance(value, tuple):
        return set().union(*map(keys_set_in, value))
    if not isinstance(value, BaseModel):
        return set()
    fields = type(value).model_fields
    own = {f"{type(value).__name__}.{fields[name].alias or name}" for name in value.model_fields_set}
    return own.union(*(keys_set_in(getattr(value, name)) for name in value.model_fields_set))


@pytest.mark.parametrize("key", every_key())
def test_both_doors_lead_to_the_same_spec(key: str) -> None:
    assert key in CASES, f"{key} is new: add its two forms to CASES"
    toml, keywords = CASES[key]
    (from_toml,) = load_toml(text=f'pipeline_name = "p"\n{toml}')
    from_python = spec_from_keywords(name="p", **keywords)
    assert from_toml == from_python
    assert hash(from_toml) == hash(from_python)
    assert key in keys_set_in(from_toml), "the case does not use the key"


def test_no_case_is_left_over() -> None:
    assert sorted(CASES) == sorted(every_key())


def test_every_nested_model_is_covered() -> None:
    found = {model for model in _leaves(Declared) if model.__module__.startswith("ematix_flow.specs")}
    assert found == set(MODELS)


def _leaves(model: type) -> set[type]:
    below = model.__subclasses__()
    return {leaf for child in below for leaf in _leaves(child)} if below else {model}


FLAT: dict[str, tuple[Connection, Any]] = {
    "target_table": (DUCKDB, "main.t"),
    "target_topic": (KAFKA, "t"),
    "target_queue": (RABBIT, "q"),
    "target_exchange": (RABBIT, "e"),
    "target_routing_key": (RABBIT, "k"),
    "target_stream": (REDIS, "s"),
    "target_key_prefix": (REDIS, "k"),
    "target_prefix": (OUT, "p"),
    "target_partition_by": (OUT, ["day"]),
    "target_partition_key_prefix": (KINESIS, "p"),
    "target_partition_key_column": (KINESIS, "c"),
    "target_message_key_column": (KAFKA, "c"),
    "target_headers_column": (KAFKA, "c"),
    "target_partition_column": (KAFKA, "c"),
    "target_topic_column": (KAFKA, "c"),
    "target_schema_registration": ("named", "check"),
    "target_primary_key": (DELTA, ["id"]),
    "target_parquet_compression": (OUT, "gzip"),
    "target_csv_delimiter": (OUT, ";"),
    "target_csv_header": (OUT, True),
    "target_csv_quote": (OUT, "'"),
    "target_csv_escape": (OUT, "\\"),
    "target_csv_null_value": (OUT, "NA"),
    "mode": (DELTA, "truncate"),
    "keys": (DELTA, ["id"]),
    "on_drift": (DELTA, "ignore"),
    "update_columns": (DELTA, ["a"]),
    "compare_columns": (DELTA, ["a"]),
    "handle_deletes": (DELTA, "hard"),
    "ttl": (DELTA, "30d"),
}
NEEDED = {
    "target_routing_key": {"exchange": "e"},
    "target_message_key_column": {"topic": "t"},
    "target_headers_column": {"topic": "t"},
    "target_partition_column": {"topic": "t"},
}


@pytest.mark.parametrize("keyword", [key for key, place in PLACES.items() if place[:2] == ("targets", 0)][1:])
def test_every_flat_keyword_is_the_field_of_the_one_target(keyword: str) -> None:
    connection, value = FLAT[keyword]
    needed: dict[str, Any] = NEEDED.get(keyword, {})
    flat: dict[str, Any] = {keyword: value} | {f"target_{key}": other for key, other in needed.items()}
    if keyword in {"update_columns", "compare_columns", "handle_deletes"}:
        needed = {"mode": "merge", "keys": ["id"]}
    if keyword == "ttl":
        needed = {"mode": "scd2", "keys": ["id"]}
    if "mode" in needed:
        flat |= needed
    listed = Target(connection, **{str(PLACES[keyword][-1]): value}, **needed)
    source: Any = Source(DUCKDB, "t") if keyword == "handle_deletes" else Source(FILES)
    assert spec_from_keywords(name="p", sources=[source], target=connection, **flat) == spec_from_keywords(
        name="p", sources=[source], targets=[listed]
    )


@pytest.mark.parametrize("keyword", [key for key, place in PLACES.items() if place[:2] == ("sources", 0)][1:])
def test_every_flat_keyword_is_the_field_of_the_one_source(keyword: str) -> None:
    field = str(PLACES[keyword][-1])
    value = {
        "csv_header": False,
        "schema": "id long",
        "change_feed": True,
        "snapshot": True,
        "max_rows_per_batch": 5,
        "max_files_per_batch": 5,
        "on_data_loss": "fail",
        "lookback": 5,
        "keys": ["id"],
        "start": "latest",
    }.get(field, ";")
    of_database = field in {"incremental_column", "lookback", "keys"}
    special: dict[str, Any] = {"start": "named", "change_feed": DELTA, "snapshot": DELTA}
    connection: Any = DUCKDB if of_database else special.get(field, FILES)
    flat: dict[str, Any] = {keyword: value}
    more: dict[str, Any] = {"query": "t", "incremental_column": "at", field: value} if of_database else {field: value}
    if of_database:
        flat = {"source_query": "t", "incremental_column": "at", **flat}
    assert spec_from_keywords(name="p", source=connection, target=OUT, **flat) == spec_from_keywords(
        name="p", sources=[Source(connection, **more)], target=OUT
    )


@pytest.mark.parametrize(("model", "end"), [(Source, "sources"), (Target, "targets")])
def test_every_field_has_a_flat_keyword(model: type[BaseModel], end: str) -> None:
    fields = {place[2] for place in PLACES.values() if place[0] == end and len(place) == 3}
    assert fields == set(model.model_fields)


def test_a_limit_for_all_sources_leaves_their_own_alone() -> None:
    sources = [Source("files", name="a"), Source("files", name="b", max_rows_per_batch=2)]
    from_python = spec_from_keywords(name="p", sources=sources, target=OUT, max_rows_per_batch=9)
    toml = f'pipeline_name = "p"\nmax_rows_per_batch = 9\n{TWO}\nmax_rows_per_batch = 2\n{OUT_TOML}'
    assert load_toml(text=toml) == (from_python,)
    assert [source.max_rows_per_batch for source in from_python.sources] == [9, 2]


def test_source_query_is_the_query_of_the_one_source() -> None:
    (spec,) = load_toml(text=f'pipeline_name = "p"\nsource_query = "q"\n{IN_TOML}{OUT_TOML}')
    assert spec == spec_from_keywords(name="p", source=FILES, source_query="q", target=OUT)
