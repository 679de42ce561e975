"""The base of every declared thing: a frozen pydantic model whose mistakes are `DeclarationError`s.

Positional arguments follow the order of the fields. Pydantic builds nested declarations without calling the class, so
a whole tree reports all its problems at once, and only the outermost call turns them into one `DeclarationError`.

Rules over several fields are methods marked with `@check`. They also run when some field is wrong, on what is right, so
that a misspelt key does not hide a second mistake until the next attempt.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.origins import users_line
from ematix_flow.problems import COMPLAINT, PYDANTIC_KINDS, Loc, bare, complain, problems_of

__all__ = ["Complaint", "Declared", "check", "problems_of"]


@dataclass(frozen=True)
class Complaint:
    """What a `@check` has to say about one place of its model."""

    at: Loc
    found: str
    allowed: str = ""
    suggestion: str = ""


Check = Callable[[Any], Iterable[Complaint]]
C = TypeVar("C", bound=Check)


def check(method: C) -> C:
    """Marks a method of a `Declared` model as a rule over several fields; it yields `Complaint`s."""
    method.__check__ = True  # type: ignore[attr-defined]
    return method


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _Declaring(ModelMetaclass):
    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> type:
        with warnings.catch_warnings():
            # `schema` is a key of the public surface; the deprecated method of BaseModel that it hides is not used.
            warnings.filterwarnings(
                "ignore", message='Field name "schema" in .* shadows an attribute', category=UserWarning
            )
            cls: type = super().__new__(mcs, name, bases, namespace, **kwargs)
        inherited = [rule for base in bases for rule in getattr(base, "__checks__", ())]
        own = [member for member in namespace.values() if getattr(member, "__check__", False)]
        type.__setattr__(cls, "__checks__", (*inherited, *own))
        return cls

    @property
    def __signature__(cls) -> inspect.Signature:
        """What help() and notebooks show: the fields, in the order in which they may be given."""
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=_default(field))
            for name, field in cast(type[BaseModel], cls).model_fields.items()
        ]
        # Connections begin with an optional name, so a field that is needed may follow one that is not.
        return inspect.Signature(parameters, __validate_parameters__=False)

    @__signature__.setter
    def __signature__(cls, _: object) -> None:
        """Pydantic sets one of its own, without positions."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        model = cast(type[BaseModel], cls)
        names = list(model.model_fields)
        if len(args) > len(names):
            problem = Problem("", f"{len(args)} positional arguments", allowed=f"at most {len(names)}")
            raise DeclarationError(cls.__name__, [problem], origin=users_line())
        positional = dict(zip(names, args, strict=False))
        if twice := [name for name in positional if name in kwargs]:
            problems = [Problem(name, "given by position and by name") for name in twice]
            raise DeclarationError(cls.__name__, problems, origin=users_line())
        try:
            return super().__call__(**positional, **kwargs)
        except ValidationError as error:
            raise DeclarationError(cls.__name__, problems_of(error, model), origin=users_line()) from None


def _default(field: FieldInfo) -> Any:
    return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


class Declared(BaseModel, metaclass=_Declaring):
    """Frozen, compared by value, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True, defer_build=True
    )
    __checks__: ClassVar[tuple[Check, ...]] = ()
    __meant__: ClassVar[Mapping[str, str]] = {}
    """Keys that people try -> the key they mean, where the spelling alone does not tell."""

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was given plus what follows from it."""
        return given

    @model_validator(mode="wrap")
    @classmethod
    def _collect_complaints(cls, data: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return build(data)
        if isinstance(data, Mapping):
            data = cls.completed(data)
        try:
            built = build(data)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            complaints = _complaints_about_the_rest(cls, data) if isinstance(data, Mapping) else []
            raise _error(cls, errors, complaints) from None
        complaints = [complaint for rule in cls.__checks__ for complaint in rule(built)]
        if complaints:
            raise _error(cls, [], complaints)
        return built


def _complaints_about_the_rest(cls: type[Declared], data: Mapping[str, Any]) -> list[Complaint]:
    """The rules applied to what is right; a rule ends where it needs a field that is wrong."""
    partial = _partial(cls, data)
    complaints: list[Complaint] = []
    for rule in cls.__checks__:
        with suppress(AttributeError):  # a field that is wrong is absent
            for complaint in rule(partial):
                complaints.append(complaint)  # noqa: PERF402 - what came before the absent field counts
    return complaints


def _partial(cls: type[Declared], data: Mapping[str, Any]) -> Declared:
    """The declaration with the fields that are right; those that are wrong are absent."""
    fields: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        key = field.alias if field.alias and field.alias in data else name
        if key in data:
            with suppress(ValidationError):
                fields[name] = _right_part(field.annotation, _field(cls, name), data[key])
        elif not field.is_required():
            fields[name] = field.get_default(call_default_factory=True)
    partial = cls.__new__(cls)
    object.__setattr__(partial, "__dict__", fields)
    return partial


def _right_part(annotation: Any, whole: TypeAdapter[Any], value: Any) -> Any:
    """The value, or what is right of it if it is made of declarations."""
    try:
        return whole.validate_python(value)
    except ValidationError:
        kind, _ = bare(annotation)
        if isinstance(kind, type) and issubclass(kind, Declared) and isinstance(value, Mapping):
            return _partial(kind, value)
        item = get_args(kind)[0] if get_origin(kind) is tuple else None
        if isinstance(item, type) and issubclass(item, Declared) and isinstance(value, list | tuple):
            return tuple(_right_part(item, TypeAdapter(item), each) for each in value)
        raise


@lru_cache(maxsize=256)
def _field(cls: type[Declared], name: str) -> TypeAdapter[Any]:
    field = cls.model_fields[name]
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(annotation)


def _error(cls: type[Declared], errors: list[ErrorDetails], complaints: Iterable[Complaint]) -> ValidationError:
    lines = [_again(error) for error in errors]
    for complaint in complaints:
        error = complain(complaint.found, complaint.allowed, complaint.suggestion)
        lines.append(InitErrorDetails(type=error, loc=complaint.at, input=None))
    return ValidationError.from_exception_data(cls.__name__, lines)


def _again(error: ErrorDetails) -> InitErrorDetails:
    """The same error in the form in which it can be raised once more."""
    ctx = error.get("ctx", {})
    kind: str | PydanticCustomError = error["type"]
    if error["type"] == COMPLAINT:
        kind = complain(**ctx)
    elif error["type"] not in PYDANTIC_KINDS:
        kind = PydanticCustomError("conflict", error["msg"])
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"], ctx=ctx)
