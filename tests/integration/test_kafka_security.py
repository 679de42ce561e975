"""Ways to log in to Kafka, against a broker that asks for them; both of the clients that the product uses."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.sinks.kafka_login import KafkaRefused
from tests.services import tokens
from tests.services.kafka import Kafka, SecureKafka, secure_kafka
from tests.topics import Topics, numbered

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

SCRAM = {f"SCRAM {bits}": f'sasl_scram_mechanism = "sha-{bits}"\nsasl_scram' for bits in (256, 512)}


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureKafka]:
    with secure_kafka() as server, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(server.folder))
        yield server


def login(secure: SecureKafka, way: str, password: str | None = None) -> tuple[str, str]:
    """Where, and what to declare."""
    authority = f'ssl_ca = "{secure.path("ca.crt")}"\n'
    if way == "token":
        return f"127.0.0.1:{secure.token_port}", authority + f'sasl_oauth_provider = "{tokens.MODULE}:token"'
    if way == "mTLS":
        own = f'ssl_cert = "{secure.path("client.signed")}"\nssl_key = "{secure.path("client.key")}"'
        return f"127.0.0.1:{secure.mtls_port}", authority + own
    prefix = SCRAM.get(way, "sasl_plain")
    secret = json.dumps(password or secure.password)
    before, _, name = prefix.rpartition("\n")
    user = f'{before}\n{name}_username = "alice"\n{name}_password = {secret}'
    return f"127.0.0.1:{secure.sasl_port}", authority + user


@pytest.mark.parametrize("way", ["PLAIN", *SCRAM, "mTLS", "token"])
def test_rows_pass_for_whoever_may_log_in(secure: SecureKafka, tmp_path: Path, way: str) -> None:
    source, target = secure.new_topic(), secure.new_topic()
    secure.send(source, numbered([1, 2]))
    place, declared = login(secure, way)
    topics = Topics(Kafka(place), tmp_path)
    for number, delivery in enumerate(("at_least_once", "exactly_once")):
        topics.run(
            source,
            name=delivery,
            target=target,
            connection=f'{declared}\ngroup_id = "g{number}"',
            top=f'delivery = "{delivery}"',
        )
        assert secure.committed(f"g{number}", source) == {0: 2}
    assert [row["id"] for row in secure.values(target)] == [1, 2, 1, 2]


def test_workers_get_tokens_of_their_own(secure: SecureKafka, tmp_path: Path) -> None:
    """Of a batch of more than a megabyte, which they send."""
    source, target = secure.new_topic(), secure.new_topic()
    secure.send(source, numbered(range(60_000)))
    place, declared = login(secure, "token")
    Topics(Kafka(place), tmp_path).run(source, target=target, connection=declared, top='delivery = "exactly_once"')
    assert len(secure.read(target)) == 60_000


@pytest.mark.parametrize("way", ["PLAIN", *SCRAM])
def test_a_wrong_password_is_told_at_once_and_does_not_pass(secure: SecureKafka, tmp_path: Path, way: str) -> None:
    topic = secure.new_topic()
    place, declared = login(secure, way, password="wrong")
    with pytest.raises(KafkaRefused, match="the login was refused") as refused:
        Topics(Kafka(place), tmp_path).run(topic, connection=declared)
    assert not refused.value.transient
    assert "wrong" not in str(refused.value)


def test_a_token_that_is_not_taken_or_not_given_is_told_at_once(secure: SecureKafka, tmp_path: Path) -> None:
    topic = secure.new_topic()
    place, declared = login(secure, "token")
    for provider, words in {"forged": "the login was refused", "absent": "closed on Sundays"}.items():
        with pytest.raises(KafkaRefused, match=words) as refused:
            Topics(Kafka(place), tmp_path).run(topic, connection=declared.replace(":token", f":{provider}"))
        assert not refused.value.transient


def test_certificates_that_do_not_fit_are_told(secure: SecureKafka, tmp_path: Path) -> None:
    topic = secure.new_topic()
    place, declared = login(secure, "PLAIN")
    unknown = declared.replace("ca.crt", "other.crt")
    with pytest.raises(KafkaRefused, match="TLS failed"):
        Topics(Kafka(place), tmp_path).run(topic, connection=unknown)
    with pytest.raises(KafkaRefused, match="ssl_ca"):
        Topics(Kafka(place), tmp_path).run(topic, connection=declared.replace("ca.crt", "absent.crt"))
