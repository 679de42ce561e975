"""SQL over several topics by the names of their sources, against a real broker."""

from pathlib import Path

import pytest

from ematix_flow import run_pipeline
from tests.services.kafka import Kafka
from tests.topics import Topics

pytestmark = pytest.mark.usefixtures("spark")


def test_a_join_of_topics_may_name_what_kafka_knows_of_their_records(kafka: Kafka, tmp_path: Path) -> None:
    topics = {"orders": kafka.new_topic(), "returns": kafka.new_topic()}
    for name, topic in topics.items():
        kafka.send(topic, [{"id": 1, "amount": 2.5}], key=f"key of {name}")
    sources = (
        f'[[sources]]\nname = "{name}"\nkind = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"\nquery = "{topic}"\n'
        'schema = "id long, amount double"\n'
        for name, topic in topics.items()
    )
    joined = Topics(kafka, tmp_path)
    declared = joined.toml("", sql="SELECT a.*, b._topic AS t, CAST(a._key AS STRING) AS k FROM orders a, returns b")
    before, after = declared.index("[source]"), declared.index("[transform]")

    run_pipeline(config_str=declared[:before] + "".join(sources) + declared[after:], bounded=True)

    assert joined.in_database() == [(1, 2.5, topics["returns"], "key of orders")]
