"""The TOML door: a document becomes one or several `PipelineSpec`s, or one error with all its problems."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ematix_flow.errors import DeclarationError, Problem, UsageError
from ematix_flow.problems import Loc, Spelling, arranged, problems_of, shown
from ematix_flow.secrets import warn_inline_credentials
from ematix_flow.specs import PipelineSpec
from ematix_flow.toml_lines import key_lines
from ematix_flow.toml_shape import NO_CONNECTIONS_HERE, SHARED, Shape, inline_connections

_TEXT = "<text>"


def load_toml(path: str | PathLike[str] | None = None, text: str | None = None) -> tuple[PipelineSpec, ...]:
    """Every pipeline of a TOML file, or of a TOML text."""
    if (path is None) == (text is None):
        found = (
            "neither a TOML file nor a TOML text was given"
            if path is None
            else "both a TOML file and a TOML text were given"
        )
        raise UsageError(found, next_step="give one of the two")
    file = _TEXT if path is None else str(path)
    content = str(text) if path is None else _read(Path(path))
    document, lines = _parse(content, file), key_lines(content)
    specs: list[PipelineSpec] = []
    problems: list[Problem] = []
    for shape in _shapes(document, file, lines, problems):
        problems += shape.problems
        try:
            specs.append(PipelineSpec.model_validate(shape.fields))
        except ValidationError as error:
            problems += problems_of(error, PipelineSpec, shape.spelling)
    problems += _same_names(specs, Spelling(file=file, lines=lines))
    if problems:
        raise DeclarationError(file, arranged(problems))
    if path is not None:
        for spec in specs:
            for declared in (*inline_connections(spec), spec.state_store, spec.spark):
                warn_inline_credentials(declared, file)
    return tuple(specs)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"there is no file {path}", next_step="check the path; `flow init` writes an example"
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", next_step="name a TOML file in it") from None
    except PermissionError:
        raise UsageError(f"{path} may not be read by this user", next_step="check its permissions") from None
    except UnicodeDecodeError as error:
        raise DeclarationError(str(path), [Problem("", f"not UTF-8 at byte {error.start}", file=str(path))]) from None


def _parse(content: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        words, _, place = str(error).partition(" (at ")
        at = re.match(r"line (\d+), column (\d+)", place)
        line = int(at[1]) if at else content.count("\n") + 1
        column = f" at column {at[2]}" if at else ""
        problem = Problem("", f"not valid TOML: {words[:1].lower()}{words[1:]}{column}", file=file, line=line)
        raise DeclarationError(file, [problem]) from None


def _shapes(
    document: Mapping[str, Any], file: str, lines: Mapping[Loc, int], problems: list[Problem]
) -> Iterator[Shape]:
    """The one pipeline that the document is, or each of its `[[pipelines]]`."""
    if "pipelines" not in document:
        yield Shape(document, (), file, lines)
        return
    spelling, pipelines = Spelling(file=file, lines=lines), document["pipelines"]
    shared = {key: document[key] for key in SHARED if key in document}
    for key in (key for key in document if key not in ("pipelines", *SHARED)):
        words = NO_CONNECTIONS_HERE if key == "connections" else ("given beside [[pipelines]]", "in each of them")
        problems.append(spelling.problem((key,), *words))
    if not isinstance(pipelines, list) or not all(isinstance(pipeline, dict) for pipeline in pipelines):
        problems.append(spelling.problem(("pipelines",), f"found {shown(pipelines)}", "[[pipelines]], once for each"))
        return
    for i, pipeline in enumerate(pipelines):
        yield Shape(pipeline, ("pipelines", i), file, lines, shared)


def _same_names(specs: list[PipelineSpec], spelling: Spelling) -> Iterator[Problem]:
    seen: set[str] = set()
    for i, spec in enumerate(specs):
        if spec.name in seen:
            place: Loc = ("pipelines", i, "pipeline_name")
            yield spelling.problem(place, f'found "{spec.name}" again', "a name of its own for each pipeline")
        seen.add(spec.name)
