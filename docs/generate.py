"""Writes reference.md and errors.md from the models and the error classes, the only places where these facts are kept.

`python docs/generate.py` writes the pages; with `--check` it only exits with 1 if they are not up to date.
"""
# ruff: noqa: INP001 - a script beside the pages it writes, not a package

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ematix_flow.connections import CONNECTION_KINDS, Connection
from ematix_flow.errors import FlowError
from ematix_flow.keywords import PLACES
from ematix_flow.problems import words_for
from ematix_flow.specs import (
    CDC,
    Aggregation,
    CDCTable,
    Join,
    Lookup,
    PipelineSpec,
    Source,
    SparkSettings,
    StateStore,
    TableRef,
    Target,
    Transform,
    Watermark,
    Window,
)
from ematix_flow.toml_shape import RENAMED

HERE = Path(__file__).parent
GENERATED = "<!-- Written by docs/generate.py; change the models, not this page. -->\n"

TABLES: dict[str, type[BaseModel]] = {
    "Top of the document": PipelineSpec,
    "[source], [[sources]]": Source,
    "[target], [[targets]]": Target,
    "[target.table]": TableRef,
    "[transform]": Transform,
    "[transform.lookups.NAME]": Lookup,
    "[transform.window]": Window,
    "[[transform.window.aggregations]]": Aggregation,
    "[transform.join]": Join,
    "[transform.cdc]": CDC,
    '[transform.cdc.tables."schema.table"]': CDCTable,
    "[state_store]": StateStore,
    "[watermark]": Watermark,
    "[spark]": SparkSettings,
}
"""Where a model stands in TOML, in the order in which one writes it."""


def pages() -> dict[Path, str]:
    return {HERE / "reference.md": reference(), HERE / "errors.md": errors()}


def reference() -> str:
    return "\n".join(
        [
            "# Reference",
            "",
            GENERATED,
            "Every key of a pipeline in TOML, then the keywords that say the same in Python, then the connections. "
            "`flow schema` prints the same as a JSON schema, for editors that complete and check while one types. "
            "A key that is declared here may belong to a part that does not run yet; then the run says so by name.",
            "",
            "## TOML",
            "",
            *(line for place, model in TABLES.items() for line in _section(place, model)),
            "## Keywords in Python",
            "",
            "`@ematix.streaming_pipeline` and `run_streaming_pipeline` take these; each fills one place of the spec.",
            "",
            "| keyword | place |",
            "|---|---|",
            *(f"| `{keyword}` | `{_place(loc)}` |" for keyword, loc in PLACES.items()),
            "",
            "## Connections",
            "",
            "As a class under `@ematix.connection`, as an object for `register_connection`, as `[connections.NAME]` in "
            "`.ematix-flow.toml`, or in place, in a source or a target. `${VAR}` is allowed in every text.",
            "",
            *(line for kind, model in CONNECTION_KINDS.items() for line in _connection(kind, model)),
        ]
    )


def errors() -> str:
    found = sorted(_error_classes(), key=lambda error: error.code)
    return "\n".join(
        [
            "# Errors",
            "",
            GENERATED,
            "Everything raised to a user is a `FlowError`: `code` is stable and safe to match on, the text says what "
            "was found and what to do. `flow` exits with 2 for a bad declaration or usage, with 1 for a run that "
            "failed. An error that may pass is `transient`: trying again is sensible.",
            "",
            "| code | exit | may pass | what it means | class |",
            "|---|---|---|---|---|",
            *(
                f"| `{error.code}` | {error.exit_code} | {'yes' if error.transient else ''} | {_summary(error)} "
                f"| `{error.__name__}` |"
                for error in found
            ),
            "",
        ]
    )


def _section(place: str, model: type[BaseModel]) -> Iterator[str]:
    yield from (f"### `{place}`" if place.startswith("[") else f"### {place}", "", _summary(model), "")
    yield from _keys(model, {name: key for key, name in RENAMED.items()} if model is PipelineSpec else {})


def _connection(kind: str, model: type[Connection]) -> Iterator[str]:
    extra = f" Needs the extra `{model.driver_extra}`." if model.driver_extra else ""
    yield from (f"### `{kind}`", "", f"`{model.__name__}`: {_summary(model)}{extra}", "")
    yield from _keys(model, {}, without=("name", "kind"))


def _keys(model: type[BaseModel], renamed: dict[str, str], without: Iterable[str] = ()) -> Iterator[str]:
    yield from ("| key | value | default | |", "|---|---|---|---|")
    for name, field in model.model_fields.items():
        if field.exclude or name in without:
            continue
        key = renamed.get(name) or field.alias or name
        yield f"| `{key}` | {_value(field)} | {_default(field)} | {_cell(field.description or '')} |"
    yield ""


def _value(field: FieldInfo) -> str:
    words = words_for(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
    if not words:
        kinds = [words_for(kind) for kind in get_args(field.annotation) if kind is not type(None)]
        words = next(filter(None, kinds), "")
    return _cell(words)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.default
    if value is None or value is PydanticUndefined or value in ((), ""):
        return ""
    return f"`{json.dumps(value)}`"


def _place(loc: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc).lstrip(".")


def _summary(thing: type) -> str:
    return _cell((inspect.getdoc(thing) or "").split("\n\n")[0])


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _error_classes() -> Iterator[type[FlowError]]:
    """Every error of the product, wherever it is declared."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in project["tool"]["setuptools"]["package-dir"]:
        package = importlib.import_module(folder)
        for module in pkgutil.walk_packages(package.__path__, f"{folder}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    waiting: list[type[FlowError]] = [FlowError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        if error.__module__.startswith("ematix_flow"):
            yield error


def main() -> None:
    stale = [page for page, text in pages().items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        sys.exit(f"not up to date: {', '.join(p.name for p in stale)}; run python docs/generate.py" if stale else 0)
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
    print(f"written: {', '.join(page.name for page in stale) or 'nothing new'}")


if __name__ == "__main__":
    main()
