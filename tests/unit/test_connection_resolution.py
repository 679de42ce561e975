"""Where a connection name is looked up: the order, the misses, the forms in which a connection can be written down."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import config
from ematix_flow.connections import (
    Connection,
    DuckDBConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    RabbitMQConnection,
    RedisConnection,
    SQLiteConnection,
    clear_registry,
    connection_from_url,
    get_connection,
    register_connection,
)
from ematix_flow.errors import DeclarationError, SecretNotFound, UnknownConnection, UsageError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "project" / ".ematix-flow.toml"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".ematix-flow" / "connections.toml"


@pytest.fixture(autouse=True)
def _own_places(project: Path, user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    project.parent.mkdir()
    user.parent.mkdir(parents=True)
    monkeypatch.chdir(project.parent)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    clear_registry()
    yield
    clear_registry()


def test_the_first_place_that_knows_a_name_wins(project: Path, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_connection(PostgresConnection("wh", "postgres://in-code/db"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "postgres://in-dsn/db")
    monkeypatch.setenv("EMATIX_FLOW_POSTGRES_WH_URL", "postgres://in-field/db")
    project.write_text('[connections.wh]\nkind = "postgres"\nurl = "postgres://in-project/db"\n')
    user.write_text('[connections.wh]\ndsn = "postgres://in-user/db"\n')

    def host() -> str:
        conn = get_connection("wh")
        assert isinstance(conn, PostgresConnection)
        assert conn.name == "wh"
        return conn.url.split("/")[2]

    assert config.connect("wh", url="postgres://explicit/db") == PostgresConnection("wh", "postgres://explicit/db")
    assert host() == "in-code"
    clear_registry()
    assert host() == "in-dsn"
    monkeypatch.delenv("EMATIX_FLOW_DSN_WH")
    assert host() == "in-field"
    monkeypatch.delenv("EMATIX_FLOW_POSTGRES_WH_URL")
    assert host() == "in-project"
    project.unlink()
    assert host() == "in-user"
    user.unlink()
    with pytest.raises(UnknownConnection):
        host()


def test_a_miss_lists_every_place_and_near_names(project: Path, user: Path) -> None:
    register_connection(PostgresConnection("warehouse", "postgres://h/db"))
    project.write_text('[connections.events]\ndsn = "kafka://h:9092"\n')
    with pytest.raises(UnknownConnection) as caught:
        get_connection("ware-hous")
    assert str(caught.value) == (
        'no connection is named "ware-hous"\n'
        "Looked at:\n"
        "  - connections registered in code (warehouse)\n"
        "  - environment variable EMATIX_FLOW_DSN_WARE_HOUS\n"
        "  - environment variables EMATIX_FLOW_<KIND>_WARE_HOUS_<FIELD>\n"
        f"  - {project} [connections.ware-hous]\n"
        f"  - {user} [connections.ware-hous] (no such file)\n"
        "What to do: did you mean warehouse? Otherwise declare it in code with register_connection(...), "
        'or run: flow connections set ware-hous "<dsn>"'
    )


def test_the_default_connection_has_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN", "mysql://h/db")
    assert config.connect() == MySQLConnection("default", "mysql://h/db")
    with pytest.raises(UnknownConnection):
        get_connection("other")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://h/db", PostgresConnection("c", "postgres://h/db")),
        ("postgresql://h/db", PostgresConnection("c", "postgresql://h/db")),
        ("mariadb://h/db", MySQLConnection("c", "mariadb://h/db")),
        ("sqlite:///data/a.db", SQLiteConnection("c", "data/a.db")),
        ("sqlite:////data/a.db", SQLiteConnection("c", "/data/a.db")),
        ("duckdb://", DuckDBConnection("c", ":memory:")),
        ("duckdb:///:memory:", DuckDBConnection("c", ":memory:")),
        ("rediss://:${PW}@h", RedisConnection("c", "rediss://:${PW}@h")),
        ("amqps://u:${PW}@h", RabbitMQConnection("c", "amqps://u:${PW}@h")),
        ("kafka://a:9092,b:9092?group_id=etl", KafkaConnection("c", "a:9092,b:9092", "etl")),
        ("file:///in/events?format=csv", ObjectStoreLocalConnection("c", "/in/events", "csv")),
    ],
)
def test_the_scheme_of_a_url_is_the_kind(url: str, expected: Connection) -> None:
    assert connection_from_url(url, name="c") == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgre://h/db", 'url: unknown scheme "postgre"; allowed: postgres, .*did you mean "postgres"'),
        ("just-text", "url: not a URL"),
        ("host=h password=hunter2", "url: not a URL"),
        ("kafka://u:hunter2@h:9092", "url: a kafka URL cannot carry a user"),
        ("kafka://h?grup_id=x", 'grup_id: unknown key; did you mean "group_id"'),
    ],
)
def test_a_url_that_says_nothing_useful_is_refused(url: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        connection_from_url(url, name="c")
    assert "hunter2" not in str(caught.value)


def test_a_reference_may_hide_the_whole_url(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    project.write_text('[connections.wh]\ndsn = "${DATABASE_URL}"\n')
    with pytest.raises(SecretNotFound, match="or add kind"):
        get_connection("wh")
    monkeypatch.setenv("DATABASE_URL", "postgres://u:hunter2@h/db")
    assert get_connection("wh") == PostgresConnection("wh", "${DATABASE_URL}")
    assert config.connect("wh") == PostgresConnection("wh", "postgres://u:hunter2@h/db")
    monkeypatch.setenv("DATABASE_URL", "sqlite:///a.db")
    with pytest.raises(DeclarationError, match="a reference hides what kind of connection this is"):
        get_connection("wh")


def test_fields_may_be_variables_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_KAFKA_PROD_EU_BOOTSTRAP_SERVERS", "h:9092")
    monkeypatch.setenv("EMATIX_FLOW_KAFKA_PROD_EU_EXTRA", '{"client.id": "flow"}')
    monkeypatch.setenv("EMATIX_FLOW_OBJECT_STORE_S3_RAW_BUCKET", "b")
    monkeypatch.setenv("EMATIX_FLOW_OBJECT_STORE_S3_RAW_FORMAT", "jsonl")
    assert get_connection("prod-eu") == KafkaConnection("prod-eu", "h:9092", extra={"client.id": "flow"})
    assert get_connection("raw").model_dump(include={"bucket", "format"}) == {"bucket": "b", "format": "json_lines"}
    with pytest.raises(UnknownConnection):
        get_connection("prod")


def test_a_problem_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_KAFKA_PROD_GROUP_ID", "etl")
    with pytest.raises(DeclarationError, match="EMATIX_FLOW_KAFKA_PROD_BOOTSTRAP_SERVERS: missing"):
        get_connection("prod")
    monkeypatch.setenv("EMATIX_FLOW_REDIS_PROD_URL", "redis://h")
    with pytest.raises(DeclarationError, match="declare it as kafka and as redis"):
        get_connection("prod")


def test_a_problem_in_a_file_names_file_line_and_key(project: Path) -> None:
    project.write_text('# ours\n\n[connections.k]\nkind = "kafka"\nbootstrap_server = "h"\n')
    with pytest.raises(DeclarationError) as caught:
        get_connection("k")
    assert [str(problem) for problem in caught.value.problems] == [
        f"{project}:3: connections.k.bootstrap_servers: missing",
        f'{project}:5: connections.k.bootstrap_server: unknown key; did you mean "bootstrap_servers"?',
    ]


@pytest.mark.parametrize("text", ["[connections.wh\n", "connections = 5\n", "[connections]\nwh = 5\n"])
def test_a_file_that_cannot_be_read_is_a_declaration_error(project: Path, text: str) -> None:
    project.write_text(text)
    with pytest.raises(DeclarationError, match=r"\.ematix-flow\.toml"):
        get_connection("wh")


def test_a_file_entry_may_add_fields_to_its_dsn(project: Path) -> None:
    project.write_text('[connections]\na = "redis://h"\n[connections.k]\ndsn = "kafka://h:1"\ngroup_id = "g"\n')
    assert get_connection("a") == RedisConnection("a", "redis://h")
    assert get_connection("k") == KafkaConnection("k", "h:1", "g")


def test_inline_credentials_in_a_file_cause_one_warning(project: Path) -> None:
    project.write_text('[connections.wh]\ndsn = "postgres://u:hunter2@h/db"\n')
    with pytest.warns(UserWarning, match=r"\$\{WH_PASSWORD\}") as caught:
        get_connection("wh")
    get_connection("wh")  # a second warning would be an error here
    assert len(caught) == 1
    assert "hunter2" not in str(caught[0].message)


def test_connections_in_code_and_environment_cause_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WH", "postgres://u:hunter2@h/db")
    assert get_connection("wh") == PostgresConnection("wh", "postgres://u:hunter2@h/db")


def test_the_list_says_where_each_connection_comes_from(
    project: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_connection(DuckDBConnection("code", ":memory:"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_DSN", "redis://h")
    monkeypatch.setenv("EMATIX_FLOW_KAFKA_PROD_BOOTSTRAP_SERVERS", "h:1")
    monkeypatch.setenv("EMATIX_FLOW_KAFKA_PROD_SCHEMA_REGISTRY_URL", "http://h")
    project.write_text('[connections.ours]\ndsn = "redis://h"\n[connections.broken]\nkind = "kafka"\n')
    user.write_text('[connections.ours]\ndsn = "redis://other"\n[connections.mine]\ndsn = "redis://h"\n')
    found = config.list_connections()
    assert {name: entry.origin for name, entry in found.items()} == {
        "broken": f"{project} [connections.broken]",
        "code": "code",
        "dsn": "environment variable EMATIX_FLOW_DSN_DSN",
        "mine": f"{user} [connections.mine]",
        "ours": f"{project} [connections.ours]",
        "prod": "environment variables EMATIX_FLOW_KAFKA_PROD_BOOTSTRAP_SERVERS, "
        "EMATIX_FLOW_KAFKA_PROD_SCHEMA_REGISTRY_URL",
    }
    assert found["ours"].connection == RedisConnection("ours", "redis://h")
    assert found["broken"].connection is None
    assert "bootstrap_servers: missing" in str(found["broken"].problem)


def test_setting_a_connection_leaves_the_rest_of_the_file_alone(user: Path) -> None:
    before = '# mine\n[connections.a]\ndsn = "redis://a" # keep\n\n# about wh\n[connections.wh]\ndsn = "redis://old"\n'
    after = '\n# last\n[connections.z]\nkind = "sqlite"\npath = "z.db"\n'
    user.write_text(before + after)
    assert config.set_connection("wh", "postgres://u:${PW}@h/d\\b") == user
    assert user.read_text() == before.replace("redis://old", "postgres://u:${PW}@h/d\\\\b") + after
    config.set_connection("new one", "redis://new")
    assert tomllib.loads(user.read_text())["connections"]["new one"] == {"dsn": "redis://new"}
    assert get_connection("new one") == RedisConnection("new one", "redis://new")
    assert user.stat().st_mode & 0o077 == 0


def test_setting_a_connection_creates_the_file_and_refuses_what_it_cannot_do(user: Path) -> None:
    user.parent.rmdir()
    config.set_connection("wh", "redis://h")
    assert user.read_text() == '[connections.wh]\ndsn = "redis://h"\n'
    with pytest.raises(DeclarationError, match="unknown scheme"):
        config.set_connection("wh", "gopher://h")
    user.write_text('[connections]\nwh = "redis://inline"\n')
    with pytest.raises(UsageError, match="by hand"):
        config.set_connection("wh", "redis://h")
    assert user.read_text() == '[connections]\nwh = "redis://inline"\n'
