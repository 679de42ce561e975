"""Mistakes that people make, and word for word what they are told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import (
    CDC,
    Aggregation,
    DuckDBConnection,
    Join,
    KafkaConnection,
    Lookup,
    SchemaRegistryConnection,
    Source,
    StateStore,
    Target,
    Watermark,
    Window,
)
from ematix_flow.errors import DeclarationError, UsageError
from ematix_flow.keywords import spec_from_keywords
from ematix_flow.specs import PipelineSpec
from ematix_flow.toml import load_toml

CASES = Path(__file__).with_name("bad_declarations.txt").read_text(encoding="utf-8")
"""`=== what is wrong`, the file, `---`, and what its user is told."""

PIPELINE = """
pipeline_name = "orders"

[source]
kind = "kafka"
bootstrap_servers = "broker:9092"
query = "orders"

[target]
kind = "duckdb"
path = "orders.duckdb"
table = "orders"
"""

BROKER = KafkaConnection(bootstrap_servers="broker:9092")
DATABASE = DuckDBConnection(path="x.duckdb")
COUNT = Aggregation("count", "n")


def declare(**keywords: Any) -> PipelineSpec:
    usual = {"name": "orders", "source": BROKER, "source_query": "orders", "target": DATABASE, "target_table": "orders"}
    return spec_from_keywords(**{**usual, **keywords})


def toml_cases() -> Iterator[Any]:
    for case in CASES.split("=== ")[1:]:
        title, _, rest = case.partition("\n")
        toml, _, problems = rest.partition("---\n")
        yield pytest.param(toml, problems.strip().splitlines(), id=title)


PYTHON = [
    pytest.param(
        lambda: spec_from_keywords(name="orders"),
        ['pipeline "orders": 2 problems', "  - source: missing", "  - target: missing"],
        id="nothing",
    ),
    pytest.param(
        lambda: declare(transform_on_eror="drop"),
        ['pipeline "orders": 1 problem', '  - transform_on_eror: unknown key; did you mean "transform_on_error"?'],
        id="misspelt keyword",
    ),
    pytest.param(
        lambda: declare(pipeline_name="x", sql="select 1"),
        [
            'pipeline "orders": 2 problems',
            '  - pipeline_name: unknown key; did you mean "name"?',
            '  - sql: unknown key; did you mean "transform_sql"?',
        ],
        id="keywords of the TOML form",
    ),
    pytest.param(
        lambda: declare(transform_on_error="dql"),
        [
            'pipeline "orders": 1 problem',
            '  - transform_on_error: found "dql"; allowed: fail, drop, dlq; did you mean "dlq"?',
        ],
        id="misspelt value",
    ),
    pytest.param(
        lambda: declare(source=Source(BROKER, "orders")),
        ['pipeline "orders": 1 problem', "  - source: found a Source; allowed: a connection, or the name of one"],
        id="a Source as source",
    ),
    pytest.param(
        lambda: declare(source=42),
        ['pipeline "orders": 1 problem', "  - source: found 42; allowed: a connection, or the name of one"],
        id="a number as source",
    ),
    pytest.param(
        lambda: declare(sources=[Source(BROKER, "orders")]),
        [
            'pipeline "orders": 2 problems',
            "  - source: given together with sources; allowed: connection of each Source",
            "  - source_query: given together with sources; allowed: query of each Source",
        ],
        id="source and sources",
    ),
    pytest.param(
        lambda: spec_from_keywords(name="o", sources=Source(BROKER, "o"), target=DATABASE, target_table="o"),
        ['pipeline "o": 1 problem', "  - sources: found a single Source; allowed: a list, such as [Source(...)]"],
        id="one Source as sources",
    ),
    pytest.param(
        lambda: spec_from_keywords(
            name="o", source=BROKER, source_query="o", targets=[Target(DATABASE, table="o")], mode="merge"
        ),
        ['pipeline "o": 1 problem', "  - mode: given together with targets; allowed: mode of each Target"],
        id="mode beside targets",
    ),
    pytest.param(
        lambda: spec_from_keywords(name="o", source=BROKER, source_query="o", target=BROKER),
        ['pipeline "o": 1 problem', "  - target_topic: missing; kafka needs topic or topic_column"],
        id="kafka target without a topic",
    ),
    pytest.param(
        lambda: declare(mode="merge"),
        ['pipeline "orders": 1 problem', '  - keys: missing; mode = "merge" needs keys, or a primary_key of the table'],
        id="merge without keys",
    ),
    pytest.param(
        lambda: declare(target_table=("main", "a", "orders")),
        [
            'pipeline "orders": 1 problem',
            '  - target_table: found a list; allowed: schema and name, such as ("analytics", "orders")',
        ],
        id="three parts of a table name",
    ),
    pytest.param(
        lambda: declare(window="tumbling"),
        ['pipeline "orders": 1 problem', '  - window: found "tumbling"; allowed: Window(...)'],
        id="window as a string",
    ),
    pytest.param(
        lambda: declare(
            window={"kind": "tumbling", "duration_ms": "60s", "aggregations": [{"agg": "count", "as": "n"}]}
        ),
        ['pipeline "orders": 1 problem', '  - window.duration_ms: found "60s"; allowed: an integer >= 1'],
        id="window as a dict with a wrong duration",
    ),
    pytest.param(
        lambda: spec_from_keywords(
            name="o",
            sources=[Source(BROKER, "o"), Source(BROKER, "p")],
            max_rows_per_batch=-5,
            target=DATABASE,
            target_table="o",
        ),
        ['pipeline "o": 1 problem', "  - max_rows_per_batch: found -5; allowed: an integer >= 1"],
        id="negative limit for all sources",
    ),
    pytest.param(
        lambda: declare(udfs=[len]),
        [
            'pipeline "orders": 1 problem',
            "  - udfs[0]: found the function len; allowed: a function decorated with @udf",
        ],
        id="undecorated function",
    ),
    pytest.param(
        lambda: declare(trigger_interval_ms=1.5),
        ['pipeline "orders": 1 problem', "  - trigger_interval_ms: found 1.5; allowed: an integer >= 0"],
        id="fraction of a millisecond",
    ),
    pytest.param(
        lambda: Window("hopping", [COUNT], duration_ms=60_000),
        ["Window: 1 problem", "  - hop_ms: missing; a hopping window needs hop_ms"],
        id="hopping window without hop",
    ),
    pytest.param(
        lambda: Window("tumbling", [COUNT], size_ms=60_000),
        [
            "Window: 2 problems",
            '  - size_ms: unknown key; did you mean "duration_ms"?',
            "  - duration_ms: missing; a tumbling window needs duration_ms",
        ],
        id="keyword of another tool",
    ),
    pytest.param(
        lambda: Aggregation("sum", "total"),
        ["Aggregation: 1 problem", "  - column: missing; sum needs a column"],
        id="sum of nothing",
    ),
    pytest.param(
        lambda: Aggregation("sum", "total", "a", None, 1, 2),
        ["Aggregation: 1 problem", "  - 6 positional arguments; allowed: at most 5"],
        id="too many arguments",
    ),
    pytest.param(
        lambda: Aggregation("sum", "total", agg="avg"),
        ["Aggregation: 1 problem", "  - agg: given by position and by name"],
        id="argument given twice",
    ),
    pytest.param(
        lambda: Target(DATABASE, table="orders", topic="x", mode="replace"),
        [
            "Target: 2 problems",
            '  - mode: found "replace"; allowed: append, merge, truncate, scd2; did you mean "truncate"?',
            "  - topic: has no meaning for duckdb; allowed: table, primary_key",
        ],
        id="topic and mode of another tool",
    ),
    pytest.param(
        lambda: Join("a", "b", ["id"], ["id"]),
        [
            "Join: 1 problem",
            "  - time_window_ms: missing; a join needs time_window_ms, or min_delta_ms and max_delta_ms",
        ],
        id="join without a time bound",
    ),
    pytest.param(
        lambda: CDC(envelope="debezum", delete_mode="soft"),
        [
            "CDC: 2 problems",
            '  - envelope: found "debezum"; allowed: debezium, maxwell, custom; did you mean "debezium"?',
            '  - soft_delete_column: missing; delete_mode = "soft" needs it',
        ],
        id="misspelt envelope",
    ),
    pytest.param(
        lambda: CDC(envelope="maxwell", transactional=True),
        [
            "CDC: 1 problem",
            '  - transactional: has no meaning with envelope = "maxwell", which does not tell where a transaction ends'
            '; allowed: envelope = "debezium", or transactional = false',
        ],
        id="transactions of maxwell",
    ),
    pytest.param(
        lambda: StateStore("postgres"),
        ["StateStore: 1 problem", '  - url: missing; kind = "postgres" needs url'],
        id="postgres state without url",
    ),
    pytest.param(
        lambda: StateStore("postgres", url=5),
        ["StateStore: 1 problem", "  - url: found 5; allowed: a string"],
        id="number as url",
    ),
    pytest.param(
        lambda: Watermark(lateness_ms=-1),
        ["Watermark: 1 problem", "  - lateness_ms: found -1; allowed: an integer >= 0"],
        id="negative lateness",
    ),
    pytest.param(
        lambda: Lookup("warehouse"),
        ["Lookup: 1 problem", "  - table: missing; a lookup needs table or query"],
        id="lookup of nothing",
    ),
    pytest.param(
        lambda: Source(SchemaRegistryConnection(url="http://x")),
        [
            "Source: 1 problem",
            "  - connection: found a SchemaRegistryConnection; allowed: a connection that holds rows",
        ],
        id="schema registry as source",
    ),
]


@pytest.mark.parametrize(("toml", "problems"), list(toml_cases()))
def test_toml(toml: str, problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.toml").write_text(toml, encoding="utf-8")
    with pytest.raises(DeclarationError) as refused:
        load_toml("orders.toml")
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    assert str(refused.value).splitlines() == [f"orders.toml: {count}", *(f"  - {problem}" for problem in problems)]


@pytest.mark.parametrize(("mistake", "message"), PYTHON)
def test_python(mistake: Callable[[], object], message: list[str]) -> None:
    with pytest.raises(DeclarationError) as refused:
        mistake()
    # The line of the call is shown as well, and has a test of its own.
    origin = f" ({refused.value.origin})" if refused.value.origin else ""
    assert str(refused.value).replace(origin, "", 1).splitlines() == message


def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        load_toml("ordres.toml")
    assert str(refused.value) == (
        "there is no file ordres.toml\nWhat to do: check the path; `flow init` writes an example"
    )


def test_secrets_are_never_repeated(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(
        PIPELINE.replace("[target]", 'sasl_plain_password = ["hunter2"]\nssl_kye = "hunter2"\n[target]')
        + '[state_store]\nkind = "local"\nurl = "postgresql://me:hunter2@db/flow"\n',
        encoding="utf-8",
    )
    with pytest.raises(DeclarationError) as refused:
        load_toml(file)
    assert len(refused.value.problems) == 3
    assert "hunter2" not in str(refused.value)


def test_a_problem_can_be_read_by_a_program(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(PIPELINE + '[transform]\non_error = "dql"\n', encoding="utf-8")
    with pytest.raises(DeclarationError) as refused:
        load_toml(file)
    (problem,) = refused.value.problems
    assert (problem.key, problem.line, problem.file) == ("transform.on_error", 14, str(file))
    assert (problem.found, problem.allowed, problem.suggestion) == ('found "dql"', "fail, drop, dlq", "dlq")
