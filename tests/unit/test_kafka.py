"""What of Kafka can be said without a broker: which topics a query means, what clients are told, what is lost."""

import json
from pathlib import Path

import pytest

from ematix_flow import KafkaConnection
from ematix_flow.errors import DeclarationError
from ematix_flow.sinks.kafka_client import KafkaRefused, java_properties, librdkafka_properties, opened
from ematix_flow.streams.sources.kafka_topics import (
    DataLost,
    Subscription,
    check_nothing_is_lost,
    next_positions,
    planned,
)


def cluster(**fields: object) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers="h:9092", **fields)  # type: ignore[arg-type]


def test_a_query_is_a_topic_a_list_or_a_pattern() -> None:
    assert Subscription("orders.eu-1_x").spark_option == {"subscribe": "orders.eu-1_x"}
    assert Subscription("a, b").spark_option == {"subscribe": "a,b"}
    assert Subscription("orders-.*").spark_option == {"subscribePattern": "orders-.*"}
    assert not Subscription("orders.eu").takes("ordersXeu")
    assert Subscription("a|b").takes("b")
    assert not Subscription("a|b").takes("ab")
    with pytest.raises(DeclarationError, match="no pattern"):
        Subscription("(a").check("source 's'")


def test_both_clients_are_told_the_same_login() -> None:
    assert "security.protocol" not in java_properties(cluster())
    plain = cluster(sasl_plain_username="u", sasl_plain_password='p"\\')
    assert java_properties(plain)["security.protocol"] == "SASL_SSL"
    assert java_properties(plain)["sasl.jaas.config"].endswith('required username="u" password="p\\"\\\\";')
    assert librdkafka_properties(plain)["sasl.password"] == 'p"\\'
    scram = {"sasl_scram_username": "u", "sasl_scram_password": "p", "sasl_scram_mechanism": "sha-512"}
    open_network = cluster(**scram, extra={"security.protocol": "SASL_PLAINTEXT"})
    for told in (java_properties(open_network), librdkafka_properties(open_network)):
        assert "SCRAM-SHA-512" in told.values()
        assert told["security.protocol"] == "SASL_PLAINTEXT"


def test_a_key_that_java_cannot_read_is_told_with_the_command_that_helps(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("-----BEGIN RSA PRIVATE KEY-----")
    (tmp_path / "c").write_text("-----BEGIN CERTIFICATE-----")
    connection = cluster(ssl_cert=str(tmp_path / "c"), ssl_key=str(tmp_path / "k"))
    with pytest.raises(KafkaRefused, match="PKCS#8") as refused:
        java_properties(connection)
    assert refused.value.next_step.startswith("openssl pkcs8")


def test_a_client_is_not_told_what_only_the_other_one_knows() -> None:
    from confluent_kafka import Producer

    told = librdkafka_properties(cluster(extra={"max.request.size": "5000000", "client.id": "x"}))
    assert isinstance(opened(Producer, told), Producer)
    with pytest.raises(KafkaRefused, match="Invalid value"):
        opened(Producer, librdkafka_properties(cluster(extra={"linger.ms": "soon"})))


def test_positions_are_those_of_the_last_committed_batch(tmp_path: Path) -> None:
    topics = Subscription("orders")
    assert next_positions(tmp_path, topics) == {}
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch in range(2):
        lines = [
            "v1",
            '{"batchWatermarkMs":0}',
            '{"logOffset":3}',
            json.dumps({"orders": {"0": 5 + batch, "1": 7}}),
            "-",
        ]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
    (tmp_path / "commits" / "0").touch()
    assert next_positions(tmp_path, topics) == {"orders": {0: 5, 1: 7}}
    assert planned(tmp_path, 1, topics) == {"orders": {0: 6, 1: 7}}
    assert planned(tmp_path, 1, Subscription("others")) is None
    check_nothing_is_lost({"orders": {0: 5, 1: 7}}, {"orders": {0: (5, 5), 1: (0, 9)}}, "s")
    with pytest.raises(DataLost) as lost:
        check_nothing_is_lost({"orders": {0: 5, 1: 7}, "gone": {0: 1}}, {"orders": {0: (6, 9), 1: (0, 3)}}, "s")
    assert lost.value.found == (
        "s: topic orders partition 0: offset 5 is gone, the first one there is 6; "
        "topic orders partition 1 ends at offset 3, but was read up to 7: it was made anew; "
        "topic gone partition 0 is gone; it was read up to offset 1"
    )
