"""Finds declared pipelines: in a file that is named, in modules, and in the current folder.

The places, in this order: every `--module`; then, in the current folder, `pipelines.py` and those of `*.toml` and
`pipelines/*.toml` that declare a pipeline. Other TOML files, such as pyproject.toml, are left alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow import pipelines
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.jobs import BatchPipeline
from ematix_flow.ops.modules import import_file, import_module
from ematix_flow.problems import near
from ematix_flow.specs import PipelineSpec
from ematix_flow.toml import load_toml

Found = PipelineSpec | BatchPipeline
_LOOKS_LIKE_ONE = re.compile(r"^\s*(?:pipeline_name\s*=|\[\[\s*pipelines\s*\]\])", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """One place that was looked at: the pipelines it declares, or why they cannot be known."""

    where: str
    specs: tuple[Found, ...] = ()
    problem: FlowError | None = None

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.where}: not usable: {self.problem.found.splitlines()[0]}"
        return f"{self.where}: {', '.join(spec.name for spec in self.specs) or 'no pipelines'}"


def find(wanted: str, *, modules: Sequence[str] = (), pipeline: str | None = None) -> tuple[Found, ...]:
    """The pipelines of a file, or of one of them; or the one pipeline of a name."""
    if wanted.endswith(".toml"):
        for module in modules:
            import_module(module)
        return _in_file(wanted, pipeline)
    if pipeline is not None:
        raise UsageError(
            f'--pipeline chooses one of several in a file, and "{wanted}" is not a TOML file',
            next_step=f"leave one of the two out: flow run {pipeline}",
        )
    return (_named(wanted, survey(modules)),)


def find_all(modules: Sequence[str] = ()) -> tuple[tuple[Found, ...], tuple[FlowError, ...]]:
    """Every pipeline that is declared here, and what is wrong with those that cannot be used."""
    places = survey(modules)
    if not places:
        raise UsageError("no pipelines are declared here", tried=_nothing_there(), next_step=_suggestion("", ()))
    found = tuple(spec for place in places for spec in place.specs)
    return found, tuple(place.problem for place in places if place.problem)


def find_spec(wanted: str, *, modules: Sequence[str] = (), pipeline: str | None = None) -> PipelineSpec:
    """What it is when it runs; the function of a batch pipeline is called for it."""
    found = find_one(wanted, modules=modules, pipeline=pipeline)
    return found.spec() if isinstance(found, BatchPipeline) else found


def find_stream(wanted: str, *, modules: Sequence[str] = (), pipeline: str | None = None) -> PipelineSpec:
    """One that may run for months."""
    found = find_one(wanted, modules=modules, pipeline=pipeline)
    if isinstance(found, BatchPipeline):
        raise UsageError(
            f'"{wanted}" is a batch pipeline, which ends when its input is done', next_step=f"flow run {wanted}"
        )
    return found


def find_batch(wanted: str, *, modules: Sequence[str] = ()) -> BatchPipeline:
    found = find_one(wanted, modules=modules)
    if not isinstance(found, BatchPipeline):
        raise UsageError(
            f'"{wanted}" is no batch pipeline (@ematix.pipeline)', next_step=f"`flow validate {wanted}` explains it"
        )
    return found


def find_one(wanted: str, *, modules: Sequence[str] = (), pipeline: str | None = None) -> Found:
    found = find(wanted, modules=modules, pipeline=pipeline)
    if len(found) > 1:
        names = ", ".join(spec.name for spec in found)
        raise UsageError(f"{wanted} declares several pipelines: {names}", next_step="choose one with --pipeline NAME")
    return found[0]


def survey(modules: Sequence[str] = ()) -> tuple[Place, ...]:
    """Every place with what it declares. A module that is named and cannot be imported is an error at once."""
    places = [Place(f"module {name}", _declared_by(lambda name=name: import_module(name))) for name in modules]  # type: ignore[misc]
    own = Path("pipelines.py")
    if own.is_file():
        places.append(_tried(str(own), lambda: _declared_by(lambda: import_file("pipelines", own))))
    places += [_tried(str(path), lambda path=path: load_toml(path)) for path in _toml_files()]  # type: ignore[misc]
    return tuple(places)


def _in_file(file: str, pipeline: str | None) -> tuple[PipelineSpec, ...]:
    specs = load_toml(file)
    if pipeline is None:
        return specs
    chosen = tuple(spec for spec in specs if spec.name == pipeline)
    if not chosen:
        names = [spec.name for spec in specs]
        raise UsageError(f'{file} declares no pipeline "{pipeline}"', next_step=_suggestion(pipeline, names))
    return chosen


def _named(name: str, places: Sequence[Place]) -> Found:
    found = [(place.where, spec) for place in places for spec in place.specs if spec.name == name]
    if not found:
        known = list(dict.fromkeys(spec.name for place in places for spec in place.specs))
        searched = [str(place) for place in places] or _nothing_there()
        raise UsageError(f'there is no pipeline "{name}"', tried=searched, next_step=_suggestion(name, known))
    pipelines.refuse_ambiguous(name)
    first = found[0][1]
    if differing := [where for where, spec in found if spec != first]:
        raise UsageError(
            f'pipeline "{name}" is declared twice, differently: in {found[0][0]} and in {differing[0]}',
            next_step="rename one of them, or name the file: flow run FILE.toml",
        )
    return first


def _suggestion(name: str, known: Sequence[str]) -> str:
    if not known:
        return "declare it, name its file (FILE.toml) or its module (--module M); `flow init PATH` writes an example"
    guess = near(name, known)
    hint = f'did you mean "{guess}"? ' if guess else ""
    return f"{hint}declared are: {', '.join(known)}"


def _nothing_there() -> list[str]:
    folder = Path.cwd()
    return [f"{folder / 'pipelines.py'} (no such file)", f"*.toml and pipelines/*.toml in {folder} (none declares one)"]


def _declared_by(load: Callable[[], object]) -> tuple[Found, ...]:
    before = {spec.name for spec in pipelines.declared()}
    load()
    return tuple(spec for spec in pipelines.declared() if spec.name not in before)


def _tried(where: str, load: Callable[[], tuple[Found, ...]]) -> Place:
    try:
        return Place(where, load())
    except FlowError as error:
        return Place(where, problem=error)


def _toml_files() -> Iterator[Path]:
    for folder in (Path(), Path("pipelines")):
        for path in sorted(folder.glob("*.toml")):
            if not path.name.startswith(".") and path.is_file() and _declares_pipelines(path):
                yield path


def _declares_pipelines(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return _LOOKS_LIKE_ONE.search(text) is not None
    return "pipeline_name" in document or "pipelines" in document
