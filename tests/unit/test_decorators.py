"""The `ematix` namespace: a decorator declares, registers and remembers where; running comes later."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ematix_flow import DuckDBConnection, Source, Target, ematix, get_connection, pipelines
from ematix_flow.connections import clear_registry
from ematix_flow.errors import DeclarationError, NotBuilt, UsageError
from ematix_flow.result import RunResult

DUCKDB = DuckDBConnection(path="x.duckdb")
MODULE = """\
from ematix_flow import ematix

@ematix.streaming_pipeline(
    source="in",
    target="out",
)
def daily_orders():
    "Orders of the day."
    raise AssertionError("a declaration is not called")
"""


@pytest.fixture(autouse=True)
def nothing_declared() -> None:
    pipelines.clear()
    clear_registry()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "my_pipelines.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_pipelines", raising=False)
    return importlib.import_module("my_pipelines")


def test_a_declaration_is_registered_under_the_function_name(module: ModuleType) -> None:
    spec = pipelines.get("daily_orders")
    assert spec is module.daily_orders.spec
    assert (spec.sources, spec.targets) == ((Source("in"),), (Target("out"),))
    assert pipelines.declared() == (spec,)
    assert module.daily_orders.__doc__ == "Orders of the day."


def test_it_remembers_file_and_line(module: ModuleType) -> None:
    assert module.daily_orders.spec.origin == "my_pipelines.py:3"
    assert repr(module.daily_orders) == "<pipeline 'daily_orders' declared at my_pipelines.py:3>"


def test_a_reloaded_module_declares_the_same_again(module: ModuleType) -> None:
    importlib.reload(module)
    assert len(pipelines.declared()) == 1


def test_two_different_pipelines_cannot_share_a_name(module: ModuleType) -> None:
    with pytest.raises(DeclarationError) as refused:
        pipelines.register(module.daily_orders.spec.model_copy(update={"idle_pause_ms": 1, "origin": "other.py:7"}))
    assert str(refused.value) == (
        'pipeline "daily_orders": 1 problem\n'
        "  - name: declared twice, differently: my_pipelines.py:3 and other.py:7; "
        "allowed: a name of its own for each pipeline"
    )


def test_the_name_can_be_given() -> None:
    @ematix.streaming_pipeline(name="orders", source="in", target="out")
    def whatever() -> None: ...

    assert whatever.spec.name == "orders"


def test_a_mistake_names_the_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_mistake.py").write_text(MODULE.replace("target=", "targt="), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeclarationError) as refused:
        importlib.import_module("my_mistake")
    assert str(refused.value) == (
        'pipeline "daily_orders" (my_mistake.py:3): 1 problem\n  - targt: unknown key; did you mean "target"?'
    )
    assert pipelines.declared() == ()


def test_the_function_takes_no_arguments() -> None:
    with pytest.raises(DeclarationError, match="the function takes conn, day; allowed: a function without arguments"):

        @ematix.streaming_pipeline(source="in", target="out")  # type: ignore[arg-type]
        def orders(conn: object, day: object) -> None: ...


def test_calling_it_runs_it(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run_declared(spec: object, **options: object) -> RunResult:
        calls.append((spec, options))
        return RunResult("daily_orders", "success")

    runtime = ModuleType("ematix_flow.ops.api")
    runtime.run_declared = run_declared  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ematix_flow.ops.api", runtime)
    assert module.daily_orders(bounded=True).status == "success"
    assert calls == [(module.daily_orders.spec, {"bounded": True})]


def test_an_unknown_pipeline_is_answered_with_the_known_ones(module: ModuleType) -> None:
    assert module
    with pytest.raises(UsageError) as refused:
        pipelines.get("daily_order")
    assert str(refused.value) == (
        'there is no pipeline "daily_order"\nWhat to do: did you mean "daily_orders"? declared are daily_orders'
    )


def test_no_pipelines_at_all() -> None:
    with pytest.raises(UsageError, match="none is declared; import the module that does"):
        pipelines.get("orders")


def test_connections_are_declared_in_the_same_namespace() -> None:
    @ematix.connection
    class warehouse:  # noqa: N801
        kind = "duckdb"
        path = "x.duckdb"

    assert get_connection("warehouse") == DuckDBConnection(name="warehouse", path="x.duckdb")


@pytest.mark.parametrize("name", ["feature_view", "workflow", "warehouse_pipeline"])
def test_what_is_not_built_says_so(name: str) -> None:
    with pytest.raises(NotBuilt, match=f"ematix.{name} is not built yet in this version"):
        getattr(ematix, name)


def test_what_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match='did you mean "streaming_pipeline"'):
        ematix.stream_pipeline  # noqa: B018


def test_the_same_file_may_declare_a_pipeline_anew(module: ModuleType) -> None:
    changed = module.daily_orders.spec.model_copy(update={"idle_pause_ms": 1, "origin": "my_pipelines.py:9"})
    pipelines.register(changed)
    typed = changed.model_copy(update={"idle_pause_ms": 2, "origin": "<stdin>:1"})
    pipelines.register(typed)
    assert pipelines.declared() == (typed,)


def test_a_decorator_without_keywords_is_refused_in_words() -> None:
    with pytest.raises(DeclarationError, match="the decorator stands without parentheses"):

        @ematix.streaming_pipeline
        def orders() -> None: ...

    with pytest.raises(DeclarationError, match='found "orders" without a keyword'):
        ematix.streaming_pipeline("orders", source="in", target="out")


def test_the_keys_that_are_allowed_are_told_as_keywords() -> None:
    with pytest.raises(DeclarationError) as refused:
        ematix.streaming_pipeline(source="in", target=DUCKDB, target_topic="t", target_table="t")(lambda: None)
    (problem,) = refused.value.problems
    assert str(problem) == ("target_topic: has no meaning for duckdb; allowed: target_table, target_primary_key")
