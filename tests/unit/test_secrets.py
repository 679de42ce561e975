"""References are expanded at open, and nothing that is shown contains a secret."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ematix_flow import secrets
from ematix_flow.connections import (
    CONNECTION_KINDS,
    Connection,
    KafkaConnection,
    KinesisConnection,
    PostgresConnection,
    RabbitMQConnection,
    RedisConnection,
    SchemaRegistryConnection,
)
from ematix_flow.connections.secret_stores import AwsResolver, GcpResolver, VaultResolver
from ematix_flow.errors import DeclarationError, FlowError, MissingExtra, SecretNotFound
from ematix_flow.model import Declared
from ematix_flow.secrets import expand, expanded, redact, redact_text, register_resolver, warn_inline_credentials
from ematix_flow.toml import load_toml

HIDDEN = "hunter2"


@pytest.fixture(autouse=True)
def _own_resolvers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_resolvers", {})


# --- references


def test_a_reference_is_expanded_when_the_connection_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    conn = PostgresConnection("wh", "postgres://app:${DB_PW}@${DB_HOST}/main")
    monkeypatch.setenv("DB_HOST", "db1")
    monkeypatch.setenv("DB_PW", "first")
    assert expanded(conn).url == "postgres://app:first@db1/main"
    monkeypatch.setenv("DB_PW", "second")
    assert expanded(conn).url == "postgres://app:second@db1/main"
    assert conn.url == "postgres://app:${DB_PW}@${DB_HOST}/main"


def test_expansion_reaches_nested_connections_and_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "value")
    registry = SchemaRegistryConnection("sr", "http://${X}")
    conn = expanded(KafkaConnection("k", "h", schema_registry=registry, extra={"client.id": "${X}"}))
    assert conn.schema_registry == SchemaRegistryConnection("sr", "http://value")
    assert conn.extra == {"client.id": "value"}


def test_what_is_expanded_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(DeclarationError, match="url: found an empty text"):
        expanded(PostgresConnection("wh", "${EMPTY}"))


def test_a_dollar_escapes_and_values_are_not_expanded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "${B}")
    assert expand("$${A} ${A} $A 5$") == "${A} ${B} $A 5$"


def test_a_missing_variable_names_the_reference_and_the_place() -> None:
    with pytest.raises(SecretNotFound) as caught:
        expanded(PostgresConnection("wh", f"postgres://u:{HIDDEN}@${{NO_SUCH_HOST}}/db"))
    assert str(caught.value) == (
        '${NO_SUCH_HOST} (connection "wh", field url) cannot be resolved\n'
        "Looked at:\n  - environment variable NO_SUCH_HOST\n"
        "What to do: export NO_SUCH_HOST=..."
    )


@pytest.mark.parametrize("text", ["${}", "${not a name}", "${1A}"])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(SecretNotFound, match="is not the name of an environment variable"):
        expand(text)


class Book:
    """A resolver with a few secrets in memory."""

    def resolve(self, reference: str) -> str:
        return {"db#password": "from-the-book"}[reference]


def test_a_registered_resolver_is_asked_by_its_prefix() -> None:
    register_resolver("book", Book())
    assert expand("x-${book:db#password}") == "x-from-the-book"
    with pytest.raises(SecretNotFound, match=r"\$\{book:db#user\} cannot be resolved"):
        expand("${book:db#user}")


def test_an_unknown_prefix_names_the_known_ones() -> None:
    with pytest.raises(SecretNotFound) as caught:
        expand("${valt:db#password}")
    assert caught.value.tried == ("resolver aws", "resolver gcp", "resolver vault")
    assert caught.value.next_step.startswith('did you mean "vault:"?')


def test_a_resolver_that_fails_does_not_leak() -> None:
    class Broken:
        def resolve(self, reference: str) -> str:
            raise RuntimeError(f"cannot log in to https://me:{HIDDEN}@vault/{reference} with token={HIDDEN}")

    register_resolver("broken", Broken())
    with pytest.raises(SecretNotFound, match="RuntimeError") as caught:
        expand("${broken:x}")
    assert HIDDEN not in str(caught.value)


def vault(**stored: Any) -> VaultResolver:
    def read(*, path: str, mount_point: str, raise_on_deleted_version: bool) -> Any:
        assert (path, mount_point, raise_on_deleted_version) == ("db/prod", "secret", True)
        return {"data": {"data": stored}}

    kv = SimpleNamespace(v2=SimpleNamespace(read_secret_version=read))
    return VaultResolver(SimpleNamespace(secrets=SimpleNamespace(kv=kv)))


def test_vault_gives_a_key_of_a_secret() -> None:
    register_resolver("vault", vault(password="pw", port=5432))
    assert expand("${vault:db/prod#password}:${vault:db/prod#port}") == "pw:5432"
    with pytest.raises(SecretNotFound, match="Vault secret secret/db/prod has no key user; it has password, port"):
        expand("${vault:db/prod#user}")
    with pytest.raises(SecretNotFound, match="name a key after #"):
        expand("${vault:db/prod}")


def test_aws_gives_a_field_or_the_whole_secret() -> None:
    stored = {"db": '{"password": "pw"}', "plain": "text"}
    client = SimpleNamespace(get_secret_value=lambda SecretId: {"SecretString": stored[SecretId]})  # noqa: N803
    register_resolver("aws", AwsResolver(client))
    assert expand("${aws:db#password} ${aws:plain}") == "pw text"
    with pytest.raises(SecretNotFound, match="AWS secret plain is not a JSON object"):
        expand("${aws:plain#password}")


def test_gcp_gives_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)

    def access(*, name: str) -> Any:
        return SimpleNamespace(payload=SimpleNamespace(data=name.encode()))

    register_resolver("gcp", GcpResolver(SimpleNamespace(access_secret_version=access)))
    with pytest.raises(SecretNotFound, match="set GOOGLE_CLOUD_PROJECT"):
        expand("${gcp:db}")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    assert expand("${gcp:db}") == "projects/p/secrets/db/versions/latest"
    assert expand("${gcp:db#3}") == "projects/p/secrets/db/versions/3"
    assert expand("${gcp:projects/q/secrets/db#2}") == "projects/q/secrets/db/versions/2"


@pytest.mark.parametrize(
    ("reference", "module", "extra"),
    [("vault:a#b", "hvac", "vault"), ("aws:a#b", "boto3", "aws"), ("gcp:projects/a/secrets/b", "google.cloud", "gcp")],
)
def test_a_store_without_its_client_names_the_extra(
    reference: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        expand(f"${{{reference}}}")
    assert caught.value.next_step == f"pip install 'ematix-flow-spark[{extra}]'"


# --- redaction


class Holder(Declared):
    held: Connection


def with_every_secret(kind: str) -> Connection:
    """A connection of the kind with a secret in every field that can hold one."""
    fields: dict[str, Any] = {}
    for name, info in CONNECTION_KINDS[kind].model_fields.items():
        if name.endswith("url"):
            fields[name] = f"amqp://me:{HIDDEN}@host/x?password={HIDDEN}&ssl_key={HIDDEN}"
        elif secrets.is_secret(name):
            fields[name] = HIDDEN
        elif name == "extra":
            fields[name] = {
                "ssl.key.password": HIDDEN,
                "sasl.jaas.config": f'x required username="u" password="{HIDDEN}";',
                "basic.auth.user.info": f"u:{HIDDEN}",
            }
        elif info.is_required():
            fields[name] = "csv" if name == "format" else "some"
    # What exclude each other cannot be set in one connection; what is shown does not depend on it.
    return CONNECTION_KINDS[kind].model_construct(**fields)


def shown(conn: Connection) -> Iterator[str]:
    yield from (repr(conn), str(conn), f"{conn}", f"{conn!r}", repr([conn]))
    yield repr(list(conn.__rich_repr__()))  # what rich prints
    yield from (repr(Holder.model_construct(held=conn)), str(Holder.model_construct(held=conn)))


@pytest.mark.parametrize("kind", CONNECTION_KINDS)
def test_no_kind_shows_a_secret(kind: str) -> None:
    conn = with_every_secret(kind)
    for text in shown(conn):
        assert HIDDEN not in text
    secret_fields = [name for name in type(conn).model_fields if secrets.is_secret(name) or name.endswith("url")]
    for name in secret_fields:
        assert f"{name}=" in repr(conn)
        assert HIDDEN in conn.model_dump()[name]


@pytest.mark.parametrize("kind", CONNECTION_KINDS)
@pytest.mark.parametrize("wrap", [lambda text: [text], lambda text: {"x": text}, lambda text: text.encode() + b"\xff"])
def test_no_error_about_a_wrong_value_shows_it(kind: str, wrap: Any) -> None:
    cls = CONNECTION_KINDS[kind]
    for name in [*cls.model_fields, "pasword"]:
        with pytest.raises(DeclarationError) as caught:
            cls(**{name: wrap(HIDDEN)})
        assert HIDDEN not in str(caught.value)
        assert HIDDEN not in repr(caught.value.problems)


def test_a_number_as_a_password_is_not_shown() -> None:
    with pytest.raises(DeclarationError) as caught:
        KinesisConnection("k", "s", access_key_id=8675309, secret_access_key=8675309)
    assert "8675309" not in str(caught.value)


def test_references_stay_readable() -> None:
    conn = KafkaConnection("k", "h", sasl_plain_username="u", sasl_plain_password="${PW}", extra={"a.key": "${K}"})
    assert "sasl_plain_password='${PW}'" in repr(conn)
    assert "{'a.key': '${K}'}" in repr(conn)
    url = "postgres://${vault:db#user}:${vault:db#password}@h/db?sslkey=${KEY}"
    assert redact("url", url) == url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"postgres://u:{HIDDEN}@h/db", "postgres://u:***@h/db"),
        (f"postgres://u:p@{HIDDEN}@h/db", "postgres://u:***@h/db"),
        (f"postgres://u:p/{HIDDEN}@h/db", "postgres://u:***@h/db"),
        (f"postgres://u:p {HIDDEN}@h/db", "postgres://u:***@h/db"),
        (f"redis://:{HIDDEN}@h:6379/0", "redis://:***@h:6379/0"),
        (f"mysql://h/db?user=u&password={HIDDEN}&x=1", "mysql://h/db?user=u&password=***&x=1"),
        (f"https://h/x?access_token={HIDDEN}", "https://h/x?access_token=***"),
        (f"host=h password='a {HIDDEN}' dbname=d", "host=h password='***' dbname=d"),
        ("postgres://u@h:5432/db", "postgres://u@h:5432/db"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, expected: str) -> None:
    assert redact("url", url) == expected
    assert repr(RedisConnection("r", url)) == f"RedisConnection(name='r', url={expected!r})"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"cannot reach amqp://u:{HIDDEN}@h:5672, retrying", "cannot reach amqp://u:***@h:5672, retrying"),
        (f"secret_access_key={HIDDEN} region=eu", "secret_access_key=*** region=eu"),
        (f'{{"api_key": "{HIDDEN}", "a": 1}}', '{"api_key": "***", "a": 1}'),
        (f"Authorization: Bearer {HIDDEN}.abc", "Authorization: Bearer ***"),
        ("primary_key=id rows=5 batch=7", "primary_key=id rows=5 batch=7"),
        ("sasl_plain_password: missing", "sasl_plain_password: missing"),
    ],
)
def test_a_log_line_is_shown_without_secrets(text: str, expected: str) -> None:
    assert redact_text(text) == expected


# --- inline credentials


def test_inline_credentials_cause_one_warning_per_file(tmp_path: Path) -> None:
    file = tmp_path / "flow.toml"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_inline_credentials(PostgresConnection("wh", f"postgres://u:{HIDDEN}@h/db"), file)
        warn_inline_credentials(KinesisConnection("k", "s", access_key_id="A", secret_access_key=HIDDEN), file)
        warn_inline_credentials(RabbitMQConnection("q", f"amqp://u:{HIDDEN}@h"), tmp_path / "other.toml")
    assert [str(warning.message) for warning in caught] == [
        f'{file}: connection "wh" has credentials in plain text (url); keep them out of the file with an environment '
        "variable, for example ${WH_PASSWORD}",
        f'{tmp_path}/other.toml: connection "q" has credentials in plain text (amqp_url); keep them out of the file '
        "with an environment variable, for example ${Q_PASSWORD}",
    ]


def test_a_process_that_reads_the_same_file_again_does_not_warn_again(tmp_path: Path) -> None:
    (tmp_path / "flow.toml").write_text(
        f'[connections.wh]\nkind = "postgres"\nurl = "postgres://u:{HIDDEN}@h/db"\n', encoding="utf-8"
    )
    load = "import pathlib, ematix_flow.connections.files as files; files.from_file('wh', pathlib.Path('flow.toml'))"
    twice = f"{load}; import subprocess, sys; subprocess.run([sys.executable, '-c', \"{load}\"], check=True)"
    told = subprocess.run([sys.executable, "-c", twice], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stderr.count("has credentials in plain text") == 1


@pytest.mark.parametrize(
    "conn",
    [
        PostgresConnection("wh", "postgres://u:${PW}@h/db"),
        PostgresConnection("wh", "postgres://h/db"),
        KafkaConnection("k", "h", ssl_cert="/c.pem", ssl_key="/k.pem", extra={"ssl.keystore.location": "/k"}),
        KafkaConnection("k", "h", sasl_plain_username="u", sasl_plain_password="${PW}"),
    ],
)
def test_what_is_no_credential_causes_no_warning(conn: Connection, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_inline_credentials(conn, tmp_path / "flow.toml")


def test_a_function_may_be_a_resolver() -> None:
    register_resolver("env2", {"db": "hunter2"}.__getitem__)
    assert expand("${env2:db}") == "hunter2"
    with pytest.raises(SecretNotFound, match='it knows no "nobody"'):
        expand("${env2:nobody}")
    with pytest.raises(FlowError, match="a function, or an object with resolve"):
        register_resolver("env2", "db")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('connect("host=h password=abc");', 'connect("host=h password=***");'),
        ("jdbc:sqlserver://h;password=a;b;encrypt=true", "jdbc:sqlserver://h;password=***;encrypt=true"),
        ("Got 'token=xyz', then", "Got 'token=***', then"),
        ('password=a";b c', "password=*** c"),
    ],
)
def test_what_closes_a_text_is_no_part_of_its_secret(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "table",
    [
        '[state_store]\nkind = "postgres"\nurl = "postgresql://me:hunter2@h/db"',
        '[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "hunter2"',
    ],
)
def test_credentials_beside_the_connections_are_warned_about(tmp_path: Path, table: str) -> None:
    file = tmp_path / "p.toml"
    ends = '[source]\nconnection = "in"\n[target]\nconnection = "out"\n'
    file.write_text(f'pipeline_name = "p"\n{ends}{table}\n')
    with pytest.warns(UserWarning, match="has credentials in plain text") as warned:
        load_toml(file)
    assert "hunter2" not in str(warned[0].message)
    assert len(warned) == 1


def test_a_setting_that_is_only_named_like_a_secret_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    ends = '[source]\nconnection = "in"\n[target]\nconnection = "out"\n'
    file.write_text(f'pipeline_name = "p"\n{ends}[spark.conf]\n"spark.sql.mapKeyDedupPolicy" = "LAST_WIN"\n')
    load_toml(file)
