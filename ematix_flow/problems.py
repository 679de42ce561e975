"""Turns pydantic's errors into `Problem`s: the user's own key, what was found, what is allowed, what was meant."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isroutine
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from ematix_flow.errors import Problem

Loc = tuple[str | int, ...]
"""Where something stands, step by step: `("sources", 0, "query")`."""

COMPLAINT = "complaint"
UNKNOWN = "unknown key"
PYDANTIC_KINDS = frozenset(get_args(ErrorType))
_SECRET = re.compile(r"password|secret|token|private_key|access_key|api_key|ssl_key|url|dsn", re.IGNORECASE)
_SAID_FOR = {
    "upsert": ("merge",),
    "overwrite": ("truncate",),
    "replace": ("truncate",),
    "insert": ("append", "create"),
    "skip": ("drop", "ignore"),
    "ignore": ("drop",),
    "sliding": ("hopping",),
    "fixed": ("tumbling",),
    "mean": ("avg",),
    "average": ("avg",),
    "outer": ("full_outer",),
    "left": ("left_outer",),
    "right": ("right_outer",),
    "pg": ("postgres",),
    "delta": ("delta_local",),
    "files": ("object_store_local",),
    "local": ("object_store_local",),
    "s3": ("object_store_s3",),
    "json": ("json_lines",),
    "memory": ("in_memory",),
}
"""Words from other tools -> the words here that mean the same."""
_LONGEST_SHOWN = 60
_MOST_LISTED = 50  # a Kafka source has about forty keys; more are those of all kinds together and help nobody


@dataclass(frozen=True)
class Spelling:
    """How the user spells the places of a spec: in TOML, with keywords, or exactly as the models do."""

    paths: Mapping[Loc, Loc] = field(default_factory=dict)
    """Place in the spec -> place in the user's words. The longest prefix counts."""
    keys: Mapping[Loc, Sequence[str]] = field(default_factory=dict)
    """Place in the user's words -> the keys that may stand there, where they are not just the model's fields."""
    models: Mapping[Loc, type[BaseModel]] = field(default_factory=dict)
    """Place in the spec -> the model there, where the annotation leaves it open."""
    elsewhere: Sequence[str] = ()
    """Every dotted key, for keys that stand in the wrong table."""
    file: str = ""
    lines: Mapping[Loc, int] = field(default_factory=dict)
    """Place in the user's words -> line."""

    def place(self, loc: Loc) -> Loc:
        for length in range(len(loc), -1, -1):
            if loc[:length] in self.paths:
                return self.paths[loc[:length]] + loc[length:]
        return loc

    def line(self, place: Loc) -> int | None:
        """The line of the place, or of the nearest table around it."""
        for length in range(len(place), -1, -1):
            if place[:length] in self.lines:
                return self.lines[place[:length]]
        return None

    def keys_in(self, allowed: str, around: Loc) -> str:
        """What is allowed, with the keys in it spelled as the user does."""
        spelled = {word: self.paths.get((*around, word)) for word in allowed.split(", ")}
        return ", ".join(key_path(place) if place else word for word, place in spelled.items())

    def problem(self, place: Loc, found: str, allowed: str = "", suggestion: str = "") -> Problem:
        return Problem(key_path(place), found, allowed, suggestion, self.file, self.line(place))


def complain(found: str, allowed: str = "", suggestion: str = "") -> PydanticCustomError:
    """A problem in the product's words that a validator can raise."""
    return PydanticCustomError(COMPLAINT, "{found}", {"found": found, "allowed": allowed, "suggestion": suggestion})


def problems_of(
    error: ValidationError, model: type[BaseModel] | None = None, spelling: Spelling | None = None
) -> list[Problem]:
    """Every error as a `Problem`, in the order of the file where there is one."""
    spelling = spelling or Spelling()
    told = [details for details in error.errors(include_url=False) if not _is_echo(details)]
    return in_file_order(_problem(details, model, spelling) for details in told)


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by line where there are lines."""
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)


def arranged(problems: Iterable[Problem]) -> list[Problem]:
    """In the order of the file, and a misspelt key of a whole document is not also reported as a missing one."""
    once = in_file_order(problems)
    meant = {_beside(problem.key, problem.suggestion) for problem in once if problem.found == UNKNOWN}
    return [problem for problem in once if not (re.match("missing(;|$)", problem.found) and problem.key in meant)]


def unknown_key(
    place: Loc, known: Sequence[str], spelling: Spelling, *, elsewhere: Sequence[str] = (), meant: str = ""
) -> Problem:
    """A key nobody knows: the near one, else the table where it belongs, else everything that is known."""
    key = str(place[-1])
    longer = (name for name in known if name.endswith(f"_{key}"))
    moved = (path for path in elsewhere if path.split(".")[-1] == key)
    suggestion = meant or near(key, known) or next(longer, "") or next(moved, "")
    allowed = ", ".join(known) if not suggestion and len(known) <= _MOST_LISTED else ""
    return spelling.problem(place, UNKNOWN, allowed, suggestion)


def _beside(key: str, other: str) -> str:
    table, dot, _ = key.rpartition(".")
    return f"{table}{dot}{other}"


def near(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or nothing."""
    choices = list(known)
    said = [choice for choice in _SAID_FOR.get(word.lower(), ()) if choice in choices]
    return next(iter(said or difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.6)), "")


def key_path(place: Loc) -> str:
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            name = step if re.fullmatch(r"[A-Za-z0-9_-]+", step) else json.dumps(step)
            path += f".{name}" if path else name
    return path


def shown(value: object, key: str = "") -> str:
    """A value as a user may see it; nothing that could hold a secret."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if key and _SECRET.search(key):
            return "a string that is not shown"
        return json.dumps(value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "...", ensure_ascii=False)
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list" if value else "an empty list"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"the function {value.__name__}" if isroutine(value) else f"a {type(value).__name__}"


def words_for(annotation: Any, *, python: bool = False) -> str:
    """What a field takes, in plain words."""
    annotation, limits = bare(annotation)
    origin = get_origin(annotation)
    if origin is Literal:
        return ", ".join(str(choice) for choice in get_args(annotation))
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        return " ".join(["an integer" if annotation is int else "a number", *_limits(limits)])
    if annotation is str:
        return "one character" if any(getattr(limit, "max_length", 0) == 1 for limit in limits) else "a string"
    if origin in (tuple, list):
        return 'a list of strings, such as ["id"]' if bare(get_args(annotation)[0])[0] is str else "a list"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"{annotation.__name__}(...)" if python else "a table"
    if origin is dict:
        return "a dict" if python else "a table"
    return ""


def _problem(details: ErrorDetails, model: type[BaseModel] | None, spelling: Spelling) -> Problem:
    kind, loc, ctx = details["type"], details["loc"], details.get("ctx", {})
    place = spelling.place(loc)
    if kind == COMPLAINT:
        return spelling.problem(place, ctx["found"], spelling.keys_in(ctx["allowed"], loc[:-1]), ctx["suggestion"])
    if kind == "extra_forbidden":
        known = spelling.keys.get(place[:-1]) or _keys_of(model, loc[:-1])
        meant = getattr(bare(_annotation_at(model, loc[:-1]))[0], "__meant__", {}).get(loc[-1], "")
        return unknown_key(place, known, spelling, elsewhere=spelling.elsewhere, meant=meant)
    expected = words_for(_expected_at(model, loc, spelling), python=not spelling.file)
    if kind == "missing":
        return spelling.problem(place, "missing", expected if "," in expected or expected.startswith("an ") else "")
    if kind in ("value_error", "assertion_error"):
        return spelling.problem(place, str(ctx["error"]))
    if kind not in PYDANTIC_KINDS:
        return spelling.problem(place, details["msg"])
    name = str(next((step for step in reversed(loc) if isinstance(step, str)), ""))
    found = f"found {shown(details['input'], name)}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", ctx["expected"])
        guess = near(details["input"], choices) if isinstance(details["input"], str) else ""
        return spelling.problem(place, found, ", ".join(choices), guess)
    if kind == "string_too_short":
        return spelling.problem(place, "found an empty text")
    if kind == "too_short":
        return spelling.problem(place, "found an empty list", "at least one")
    return spelling.problem(place, found, expected or details["msg"].removeprefix("Input should be "))


def _is_echo(details: ErrorDetails) -> bool:
    """Pydantic counts only the good items of a list: a list whose every item is wrong also counts as too short."""
    return details["type"] == "too_short" and bool(details["input"])


def bare(annotation: Any) -> tuple[Any, list[Any]]:
    """The annotation without `Annotated` and `| None`, and the limits that stood around it."""
    limits: list[Any] = []
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
            for item in metadata:
                limits += getattr(item, "metadata", [item])
        elif get_origin(annotation) in (Union, UnionType):
            options = [option for option in get_args(annotation) if option is not type(None)]
            if len(options) != 1:
                return annotation, limits
            annotation = options[0]
        else:
            return annotation, limits


def _limits(limits: Iterable[Any]) -> Iterator[str]:
    signs = {Ge: (">=", "ge"), Gt: (">", "gt"), Le: ("<=", "le"), Lt: ("<", "lt")}
    found = [
        f"{signs[type(limit)][0]} {getattr(limit, signs[type(limit)][1])}" for limit in limits if type(limit) in signs
    ]
    yield from [" and ".join(found)] if found else []


def _expected_at(model: type[BaseModel] | None, loc: Loc, spelling: Spelling) -> Any:
    for length in range(len(loc), 0, -1):
        if loc[:length] in spelling.models:
            return _annotation_at(spelling.models[loc[:length]], loc[length:])
    return _annotation_at(model, loc)


def _annotation_at(model: type[BaseModel] | None, loc: Loc) -> Any:
    """The annotation of the field at a place below a model; None where the models do not say."""
    annotation: Any = model
    for step in loc:
        annotation, _ = bare(annotation)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = annotation.model_fields
            named = fields.get(str(step)) or next((f for f in fields.values() if f.alias == step), None)
            if named is None:
                return None
            annotation = Annotated[named.annotation, *named.metadata] if named.metadata else named.annotation
        elif origin in (tuple, list) and arguments:
            annotation = arguments[0]
        elif origin is dict:
            annotation = arguments[1]
        else:
            return None
    return annotation


def _keys_of(model: type[BaseModel] | None, loc: Loc) -> list[str]:
    found, _ = bare(_annotation_at(model, loc))
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        return []
    return [spec.alias or name for name, spec in found.model_fields.items() if not spec.exclude]
