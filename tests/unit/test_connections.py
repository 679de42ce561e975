"""Typed connections: construction, what goes together, what excludes each other, and the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ematix_flow.connections import (
    CONNECTION_KINDS,
    AnyConnection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    clear_registry,
    connection,
    get_connection,
    register_connection,
    registered_connections,
)
from ematix_flow.decorators import ematix
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.specs import Source, Target
from ematix_flow.toml import load_toml

SMALLEST: dict[str, dict[str, Any]] = {
    "postgres": {"url": "postgres://h/db"},
    "mysql": {"url": "mysql://h/db"},
    "sqlite": {"path": ":memory:"},
    "duckdb": {"path": ":memory:"},
    "delta_local": {"path": "/lake"},
    "delta_s3": {"bucket": "b"},
    "object_store_local": {"path": "/in"},
    "object_store_s3": {"bucket": "b"},
    "kafka": {"bootstrap_servers": "h:9092"},
    "rabbitmq": {"amqp_url": "amqp://h"},
    "pubsub": {"project_id": "p"},
    "kinesis": {"stream_name": "s"},
    "redis": {"url": "redis://h"},
    "schema_registry": {"url": "http://h"},
    "glue_schema_registry": {"registry_name": "r", "region": "eu-west-1"},
    "snowflake": {"account": "a", "user": "u", "password": "${PW}"},
    "bigquery": {"project": "p", "dataset": "d"},
    "redshift": {"host": "h", "database": "d", "user": "u", "password": "${PW}"},
}


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    clear_registry()
    yield
    clear_registry()


def problems(build: Any) -> list[str]:
    with pytest.raises(DeclarationError) as caught:
        build()
    return [str(problem) for problem in caught.value.problems]


def kafka_problems(**fields: Any) -> list[str]:
    return problems(lambda: KafkaConnection("k", "h:9092", **fields))


@pytest.mark.parametrize("kind", CONNECTION_KINDS)
def test_every_kind_is_built_from_its_required_fields_and_needs_each_of_them(kind: str) -> None:
    cls = CONNECTION_KINDS[kind]
    conn = cls(name="c", **SMALLEST[kind])
    assert conn.kind == kind
    assert TypeAdapter(AnyConnection).validate_python({"kind": kind, "name": "c", **SMALLEST[kind]}) == conn
    for field in SMALLEST[kind]:
        rest = {key: value for key, value in SMALLEST[kind].items() if key != field}
        assert any(found.startswith(f"{field}: missing") for found in problems(lambda rest=rest: cls(name="c", **rest)))


@pytest.mark.parametrize("kind", CONNECTION_KINDS)
def test_every_field_is_documented_and_kind_is_last(kind: str) -> None:
    fields = CONNECTION_KINDS[kind].model_fields
    assert [name for name, field in fields.items() if not field.description] == ["kind"]
    assert (next(iter(fields)), list(fields)[-1]) == ("name", "kind")


def test_positional_and_keyword_arguments_and_synonyms_mean_the_same() -> None:
    expected = PostgresConnection(name="wh", url="postgres://h/db")
    assert PostgresConnection("wh", "postgres://h/db") == expected
    assert PostgresConnection("wh", dsn="postgres://h/db") == expected
    assert PostgresConnection("wh", "postgres://other/db") != expected
    assert MySQLConnection("wh", dsn="mysql://h/db").url == "mysql://h/db"
    assert RabbitMQConnection("q", url="amqp://h").amqp_url == "amqp://h"


def test_both_synonyms_at_once_are_refused() -> None:
    assert problems(lambda: PostgresConnection("wh", url="postgres://a/b", dsn="postgres://c/d")) == [
        "dsn: given together with url; allowed: one of the two"
    ]


def test_a_connection_is_frozen_and_hashable() -> None:
    conn = KafkaConnection("k", "h:9092", extra={"client.id": "x"})
    with pytest.raises(ValidationError):
        conn.group_id = "other"
    assert {conn: 1}[KafkaConnection("k", "h:9092", extra={"client.id": "x"})] == 1


def test_a_path_may_be_a_pathlib_path(tmp_path: Path) -> None:
    assert DuckDBConnection("d", path=tmp_path / "a.duckdb").path == f"{tmp_path}/a.duckdb"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/in/a.parquet", "parquet"),
        ("/in/*.csv", "csv"),
        ("/in/a.CSV.gz", "csv"),
        ("a.orc", "orc"),
        ("a.jsonl", "json_lines"),
        ("a.ndjson", "json_lines"),
        ("a.json", "json_lines"),
    ],
)
def test_the_format_is_guessed_from_the_suffix(path: str, expected: str) -> None:
    assert ObjectStoreLocalConnection("f", path).format == expected


def test_a_given_format_beats_the_suffix_and_jsonl_is_json_lines() -> None:
    assert ObjectStoreLocalConnection("f", "/in/a.csv", "jsonl").format == "json_lines"
    assert ObjectStoreS3Connection("f", bucket="b", format="jsonl").format == "json_lines"


def test_a_format_may_be_told_by_the_query_of_a_source() -> None:
    folder = ObjectStoreLocalConnection("f", "/in")
    assert folder.format is None
    assert Source(folder, "*.csv").connection == ObjectStoreLocalConnection("f", "/in", "csv")
    assert Source(ObjectStoreLocalConnection("f", "/in", "orc"), "*.csv").connection.format == "orc"  # type: ignore[union-attr]
    assert Source(ObjectStoreS3Connection(bucket="b"), "a/*.jsonl").connection.format == "json_lines"  # type: ignore[union-attr]
    (spec,) = load_toml(text=f"{FILES}query = '*.csv.gz'\n[target]\nconnection = 'out'")
    assert spec.sources[0].connection.format == "csv"  # type: ignore[union-attr]


def test_a_format_that_cannot_be_guessed_is_a_problem() -> None:
    missing = 'missing, and the path "/in" has no suffix to guess it from; allowed: parquet, csv, orc, json_lines'
    for use in (
        lambda: Source(ObjectStoreLocalConnection("f", "/in"), "day=*"),
        lambda: Target(ObjectStoreLocalConnection("f", "/in")),
    ):
        assert problems(use) == [f"connection.format: {missing}"]
    toml = f"{FILES}[target]\nkind = 'object_store_local'\npath = '/in'"
    assert problems(lambda: load_toml(text=toml)) == [
        f"<text>:2: source.format: {missing}",
        f"<text>:5: target.format: {missing}",
    ]
    register_connection(ObjectStoreLocalConnection("out", "/in"))
    (spec,) = load_toml(text=f"{FILES}query = '*.csv'\n[target]\nconnection = 'out'")
    assert problems(lambda: spec.with_connections(get_connection)) == [f"targets[0].connection.format: {missing}"]


FILES = "pipeline_name = 'p'\n[source]\nkind = 'object_store_local'\npath = '/in'\n"
AUTH_FAMILIES: list[dict[str, str]] = [
    {"sasl_plain_username": "u", "sasl_plain_password": "${PW}"},
    {"sasl_scram_username": "u", "sasl_scram_password": "${PW}", "sasl_scram_mechanism": "sha-512"},
    {"msk_iam_region": "eu-west-1"},
    {"sasl_oauth_provider": "shop.logins:token"},
    {"ssl_cert": "/c.pem", "ssl_key": "/k.pem"},
]


@pytest.mark.parametrize("family", AUTH_FAMILIES)
def test_each_way_to_authenticate_is_accepted_alone_and_with_a_certificate_authority(family: dict[str, str]) -> None:
    assert KafkaConnection("k", "h:9092", ssl_ca="/ca.pem", **family).ssl_ca == "/ca.pem"


def test_two_ways_to_authenticate_are_refused() -> None:
    names = ["sasl_plain_*", "sasl_scram_*", "msk_iam_region", "sasl_oauth_provider", "ssl_cert with ssl_key"]
    for i, first in enumerate(AUTH_FAMILIES):
        for j in range(i + 1, len(AUTH_FAMILIES)):
            second = AUTH_FAMILIES[j]
            assert kafka_problems(**first, **second) == [
                f"{next(iter(second))}: {names[i]} and {names[j]} are set; allowed: one way to authenticate"
            ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("sasl_plain_username", "sasl_plain_password"),
        ("ssl_cert", "ssl_key"),
        ("schema_registry_basic_auth_user", "schema_registry_basic_auth_password"),
    ],
)
def test_half_a_pair_is_refused(first: str, second: str) -> None:
    together = f"and {first} and {second} go together"
    url = {"schema_registry_url": "http://h"}
    assert kafka_problems(**url, **{first: "x"}) == [f"{second}: missing: {first} is set, {together}"]
    assert kafka_problems(**url, **{second: "x"}) == [f"{first}: missing: {second} is set, {together}"]


def test_a_property_that_has_a_field_is_told() -> None:
    assert kafka_problems(extra={"auto.offset.reset": "latest"}) == [
        'extra."auto.offset.reset": has a field of its own; allowed: auto_offset_reset'
    ]


def test_scram_needs_its_mechanism() -> None:
    assert kafka_problems(sasl_scram_username="u", sasl_scram_password="x") == [
        "sasl_scram_mechanism: missing: sasl_scram_username and sasl_scram_password are set, and "
        "sasl_scram_username, sasl_scram_password and sasl_scram_mechanism go together"
    ]


@pytest.mark.parametrize("kind", ["kinesis", "delta_s3", "object_store_s3"])
def test_half_of_the_aws_keys_is_refused(kind: str) -> None:
    assert problems(lambda: CONNECTION_KINDS[kind](**SMALLEST[kind], access_key_id="x")) == [
        "secret_access_key: missing: access_key_id is set, and access_key_id and secret_access_key go together"
    ]


def test_schema_registry_settings_that_exclude_each_other() -> None:
    assert kafka_problems(schema_registry="sr", schema_registry_url="http://h") == [
        "schema_registry_url: set together with schema_registry; allowed: one of the two"
    ]
    basic = {"schema_registry_basic_auth_user": "u", "schema_registry_basic_auth_password": "p"}
    assert kafka_problems(**basic) == [
        "schema_registry_basic_auth_user: set without schema_registry_url; a connection in schema_registry has its own "
        "user and password"
    ]


def test_a_schema_registry_is_a_name_a_connection_or_a_table() -> None:
    registry = SchemaRegistryConnection("sr", "http://h")
    table = {"kind": "schema_registry", "name": "sr", "url": "http://h"}
    assert KafkaConnection("k", "h", schema_registry=registry) == KafkaConnection("k", "h", schema_registry=table)
    assert KafkaConnection("k", "h", schema_registry="sr").schema_registry == "sr"
    assert kafka_problems(schema_registry={"kind": "glue_schema_registry", "region": "x"}) == [
        "schema_registry.registry_name: missing"
    ]


def test_a_glue_registry_goes_only_with_avro_and_protobuf() -> None:
    glue = GlueSchemaRegistryConnection("g", "r", "eu-west-1")
    assert KafkaConnection("k", "h", payload_format="avro", schema_registry=glue).schema_registry == glue
    assert kafka_problems(schema_registry=glue) == [
        'payload_format: "json" does not go with a Glue schema registry; allowed: avro, protobuf'
    ]
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
    assert problems(lambda: GlueSchemaRegistryConnection("g", "r", "eu", aws_profile="p", **keys)) == [
        "aws_profile: set together with keys; choose the profile or the keys"
    ]


def test_all_problems_are_reported_at_once() -> None:
    assert problems(lambda: KafkaConnection("k", bootstap_servers="h", payload_format="jsn", ssl_cert="/c")) == [
        "bootstrap_servers: missing",
        'payload_format: found "jsn"; allowed: json, raw_bytes, avro, protobuf, json_schema; did you mean "json"?',
        'bootstap_servers: unknown key; did you mean "bootstrap_servers"?',
        "ssl_key: missing: ssl_cert is set, and ssl_cert and ssl_key go together",
    ]


def test_snowflake_wants_a_password_or_a_key_and_redshift_a_real_port() -> None:
    assert problems(lambda: SnowflakeConnection("s", "a", "u", password="x", private_key="y")) == [
        "private_key: set together with password; allowed: one of the two"
    ]
    assert SnowflakeConnection("s", "a", "u", private_key="${PEM}", schema="raw").schema == "raw"
    assert RedshiftConnection("r", "h", database="d", user="u", password="${PW}").port == 5439
    assert len(problems(lambda: RedshiftConnection("r", "h", 0, "d", "u", "${PW}"))) == 1


def test_a_registered_connection_is_found_by_name() -> None:
    conn = register_connection(PostgresConnection("wh", "postgres://h/db"))
    assert get_connection("wh") is conn
    registered_connections().clear()
    assert registered_connections() == {"wh": conn}


def test_the_last_connection_of_a_name_counts() -> None:
    register_connection(PostgresConnection("wh", "postgres://h/db"))
    register_connection(DuckDBConnection("wh", ":memory:"))
    assert get_connection("wh").kind == "duckdb"


def test_a_connection_is_found_by_a_name_only() -> None:
    with pytest.raises(FlowError, match="a connection is found by its name, not by nothing"):
        get_connection(None)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="without parentheses, on a class"):
        ematix.connection()


def test_what_cannot_be_registered_is_refused() -> None:
    assert problems(lambda: register_connection(PostgresConnection(url="postgres://h/db")))[0].startswith(
        "name: missing"
    )
    assert problems(lambda: register_connection("postgres://h/db")) == [  # type: ignore[type-var]
        "str is not a connection; allowed: a typed connection"
    ]


def test_a_class_body_is_a_connection() -> None:
    class Shared:
        kind = "kafka"
        payload_format = "avro"

    @connection
    class events(Shared):  # noqa: N801 - the class name is the connection's name
        bootstrap_servers = "${BROKERS}"
        group_id = "etl"

    assert events == KafkaConnection("events", "${BROKERS}", "etl", "avro")
    assert get_connection("events") is events


def test_mistakes_in_a_class_body_are_named() -> None:
    assert problems(lambda: connection(type("wh", (), {"kind": "postgress", "url": "x"})))[0].endswith(
        'did you mean "postgres"?'
    )
    assert problems(lambda: connection(type("wh", (), {"kind": "kafka", "bootstrap_server": "h"}))) == [
        "bootstrap_servers: missing",
        'bootstrap_server: unknown key; did you mean "bootstrap_servers"?',
    ]
    assert problems(lambda: connection(type("wh", (), {"url": "x"})))[0].startswith("kind: missing; allowed: postgres,")
    with pytest.raises(FlowError, match="int is not a class"):
        connection(5)  # type: ignore[arg-type]
