"""What of Kafka can be said without a broker: which topics a query means, what clients are told, what is lost."""

import base64
import json
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import KafkaException, Producer

from ematix_flow import DuckDBConnection, KafkaConnection, Source
from ematix_flow.errors import DeclarationError, UsageError
from ematix_flow.sinks.kafka_client import java_properties, librdkafka_properties, opened
from ematix_flow.sinks.kafka_lanes import produced
from ematix_flow.sinks.kafka_login import KafkaRefused
from ematix_flow.specs.position import Position
from ematix_flow.streams.needs import jar_groups_of
from ematix_flow.streams.sources.kafka import KafkaSource
from ematix_flow.streams.sources.kafka_positions import begin_at, end_before
from ematix_flow.streams.sources.kafka_topics import (
    DataLost,
    Notes,
    Subscription,
    check_nothing_is_lost,
)
from ematix_flow.toml import load_toml


def cluster(**fields: object) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers="h:9092", **fields)  # type: ignore[arg-type]


def test_a_query_is_a_topic_a_list_or_a_pattern() -> None:
    assert Subscription("orders.eu-1_x").spark_option == {"subscribe": "orders.eu-1_x"}
    assert Subscription("a, b").spark_option == {"subscribe": "a,b"}
    assert Subscription("orders-.*").spark_option == {"subscribePattern": "orders-.*"}
    assert not Subscription("orders.eu").takes("ordersXeu")
    assert Subscription("a|b").takes("b")
    assert not Subscription("a|b").takes("ab")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("(a", "no pattern"),
        ("a,", "a topic has no name"),
        ("a,,b", "a topic has no name"),
        ("a b", "no topic can be called"),
        (".", "no topic can be called"),
    ],
)
def test_a_query_that_means_no_topic_is_told_at_load(query: str, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        Source(connection=cluster(), query=query)


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


def test_msk_is_told_a_token_that_aws_has_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = cluster(msk_iam_region="eu-west-1")
    assert java_properties(connection)["sasl.mechanism"] == "AWS_MSK_IAM"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    told = librdkafka_properties(connection)
    assert (told["security.protocol"], told["sasl.mechanisms"]) == ("SASL_SSL", "OAUTHBEARER")
    token, expires = told["oauth_cb"]("")
    url = urlsplit(base64.urlsafe_b64decode(token + "==").decode())
    asked = parse_qs(url.query)
    assert url.hostname == "kafka.eu-west-1.amazonaws.com"
    assert asked["Action"] == ["kafka-cluster:Connect"]
    assert asked["X-Amz-Credential"][0].startswith("x/")
    assert time.time() < expires < time.time() + 3600


def test_msk_needs_the_libraries_of_aws() -> None:
    msk = cluster(msk_iam_region="eu-west-1")
    for connection, more in ((cluster(), set()), (msk, {"msk", "s3"})):
        (spec,) = load_toml(
            text="pipeline_name = 'p'\n[source]\nconnection = 'k'\nquery = 't'\n[target]\nconnection = 'k'\ntopic = 'u'"
        )
        assert jar_groups_of(spec.with_connections(lambda _, found=connection: found)) == {"kafka"} | more


def test_a_provider_of_tokens_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import Producer

    with pytest.raises(DeclarationError, match=r"shop.*cannot be imported"):
        opened(Producer, librdkafka_properties(cluster(sasl_oauth_provider="shop:token")))
    monkeypatch.setitem(sys.modules, "made_up", SimpleNamespace(token=lambda: ("t", 5), wrong=lambda: "t"))
    assert librdkafka_properties(cluster(sasl_oauth_provider="made_up:token"))["oauth_cb"]("") == ("t", 5.0)
    with pytest.raises(KafkaRefused, match="made_up:wrong gave str, not a token"):
        opened(Producer, librdkafka_properties(cluster(sasl_oauth_provider="made_up:wrong")))
    with pytest.raises(DeclarationError, match="sasl_oauth_provider"):
        cluster(sasl_oauth_provider="token")


def test_java_gets_tokens_from_an_address_that_only_it_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "issuing", SimpleNamespace(token=lambda: ("t", time.time() + 60)))
    told = java_properties(cluster(sasl_oauth_provider="issuing:token"))
    user, password = re.findall(r'client\w+="([^"]+)"', told["sasl.jaas.config"])
    request = Request(told["sasl.oauthbearer.token.endpoint.url"], b"grant_type=client_credentials")
    with pytest.raises(HTTPError, match="401"):
        urlopen(request)
    known = base64.b64encode(f"{user}:{password}".encode()).decode()
    request.add_header("Authorization", f"Basic {known}")
    with urlopen(request) as answer:
        assert json.load(answer)["access_token"] == "t"


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
    notes = Notes(tmp_path, "o", Subscription("orders"))
    assert notes.next() == {}
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
    assert notes.next() == {"orders": {0: 5, 1: 7}}
    assert notes.end_of(1) == {"orders": {0: 6, 1: 7}}
    assert Notes(tmp_path, "o", Subscription("others")).end_of(1) is None
    source = KafkaSource.__new__(KafkaSource)
    source._notes = notes
    assert (source.rows_of(1), source.rows_of(0), source.rows_of(2)) == (1, None, None)
    # Two sources of the same topic are told apart by their places in the plan.
    (tmp_path / "source_order.json").write_text('[null, "o", "p"]')
    assert notes.end_of(1) == {"orders": {0: 6, 1: 7}}
    lines = ["v1", "{}", '{"orders":{"0":1}}', '{"orders":{"0":2}}', '{"orders":{"0":3}}']
    (tmp_path / "offsets" / "2").write_text("\n".join(lines))
    assert notes.end_of(2) == {"orders": {0: 2}}
    assert Notes(tmp_path, "p", Subscription("orders")).end_of(2) == {"orders": {0: 3}}
    check_nothing_is_lost({"orders": {0: 5, 1: 7}}, {"orders": {0: (5, 5), 1: (0, 9)}}, "s")
    with pytest.raises(DataLost) as lost:
        check_nothing_is_lost({"orders": {0: 5, 1: 7}, "gone": {0: 1}}, {"orders": {0: (6, 9), 1: (0, 3)}}, "s")
    assert lost.value.found == (
        "s: topic orders partition 0: offset 5 is gone, the first one there is 6; "
        "topic orders partition 1 ends at offset 3, but was read up to 7: it was made anew; "
        "topic gone partition 0 is gone; it was read up to offset 1"
    )


THERE = {"a": {0: (0, 10), 1: (4, 8)}, "b": {0: (2, 3)}}


def test_a_position_is_an_end_a_time_an_offset_or_offsets() -> None:
    assert Position.of("latest") == Position(end="latest")
    assert Position.of(" 12 ") == Position(offset=12)
    assert Position.of("2026-01-31") == Position(time=datetime(2026, 1, 31, tzinfo=UTC))
    assert Position.of("2026-01-31T08:00+02:00").time == datetime(2026, 1, 31, 6, tzinfo=UTC)
    assert Position.of("a/0=5, 1 = 7").offsets == {("a", 0): 5, (None, 1): 7}
    for wrong in ("", "soon", "a/0", "a/x=1", "0=-1", "-3", "0=1,"):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says
            Position.of(wrong)
    with pytest.raises(DeclarationError, match='start: found "soon"; allowed: earliest, latest, a time such as'):
        Source(cluster(), "t", start="soon")
    with pytest.raises(DeclarationError, match="start: has no meaning for duckdb, only for kafka"):
        Source(DuckDBConnection(path="x"), "t", start="latest")
    assert Source(cluster(), "t", start=5).start == "5"


def test_positions_become_offsets_of_every_partition() -> None:
    def begin(text: str, *, strict: bool = True) -> object:
        return begin_at(Position.of(text), THERE, cluster(), "s", strict=strict)

    assert begin("a/0=5") == {"a": {0: 5, 1: 4}, "b": {0: 2}}
    assert begin("0=3") == {"a": {0: 3, 1: 4}, "b": {0: 3}}
    assert begin("5") == {"a": {0: 5, 1: 5}, "b": {0: 3}}
    assert begin("latest") == {"a": {0: 10, 1: 8}, "b": {0: 3}}
    with pytest.raises(DataLost, match="s: topic a partition 1: offsets 1 to 3 are gone, the first one there is 4"):
        begin("1=1")
    assert begin("1=1", strict=False) == {"a": {0: 0, 1: 4}, "b": {0: 2}}
    for wrong in ("c/0=1", "2=1", "b/1=1"):
        with pytest.raises(UsageError, match="there is no partition") as told:
            begin(wrong)
        assert told.value.next_step == "name some of these: a/0 to 1, b/0 to 0"
    assert end_before(Position.of("a/0=5, b/0=99"), THERE, cluster(), "s") == {"a": {0: 5, 1: 8}, "b": {0: 3}}
    assert end_before(Position.of("1"), THERE, cluster(), "s") == {"a": {0: 1, 1: 4}, "b": {0: 2}}


def test_records_that_vanish_within_a_batch_are_lost_data() -> None:
    said = RuntimeError(
        "An error occurred.\n: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost "
        "because they are not available in Kafka any more;\nset the source option failOnDataLoss to false.\n"
        "Reason: Could not read records in offset [2, 4) for topic partition orders-0\nwith consumer group "
        "ematix-flow-reading.\n\tat org.apache.spark.sql.kafka010.KafkaExceptions$"
    )
    lost = DataLost.found_in(said)
    assert lost is not None
    words = (
        "records of a topic are gone before they were read: Could not read records in offset [2, 4) for topic partition"
    )
    assert lost.found == f"{words} orders-0"
    # While a batch is planned, nothing of it names the class of the error.
    planned = RuntimeError(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Some data may have been lost because they are not "
        "available in Kafka any more;\neither the data was aged out by Kafka.\nReason:\nPartition orders-0 offset was "
        "changed from 2 to 1.\nThis could be a user error. SQLSTATE: XXKST"
    )
    lost = DataLost.found_in(planned)
    assert lost is not None
    assert "read: Partition orders-0 offset was changed from 2 to 1." in lost.found
    assert DataLost.found_in(RuntimeError("something else")) is None


def test_a_record_does_not_wait_for_room_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ematix_flow.sinks.kafka_lanes._CALL_SECONDS", 0.2)
    nobody = opened(Producer, {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": 1})
    produced(nobody, "orders", b"1")
    with pytest.raises(KafkaException, match="did not answer"):
        produced(nobody, "orders", b"2")
    nobody.purge()
