"""The base of every declared thing: a frozen pydantic model whose mistakes are `DeclarationError`s.

Positional arguments follow the order of the fields. Pydantic builds nested declarations without calling the class, so
a whole tree reports all its problems at once, and only the outermost call turns them into one `DeclarationError`.

Rules over several fields are methods marked with `@check`. They also run when some field is wrong, on what is right, so
that a misspelt key does not hide a second mistake until the next attempt.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, LiteralString, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import COMPLAINT, PYDANTIC_KINDS, Loc, complain, problems_of

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

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        model = cast(type[BaseModel], cls)
        names = list(model.model_fields)
        if len(args) > len(names):
            problem = Problem("", f"{len(args)} positional arguments", allowed=f"at most {len(names)}")
            raise DeclarationError(cls.__name__, [problem])
        positional = dict(zip(names, args, strict=False))
        if twice := [name for name in positional if name in kwargs]:
            raise DeclarationError(cls.__name__, [Problem(name, "given by position and by name") for name in twice])
        try:
            return super().__call__(**positional, **kwargs)
        except ValidationError as error:
            raise DeclarationError(cls.__name__, problems_of(error, model)) from None


class Declared(BaseModel, metaclass=_Declaring):
    """Frozen, compared by value, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)
    __checks__: ClassVar[tuple[Check, ...]] = ()
    __meant__: ClassVar[Mapping[str, str]] = {}
    """Keys that people try -> the key they mean, where the spelling alone does not tell."""

    @model_validator(mode="wrap")
    @classmethod
    def _collect_complaints(cls, data: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls) or not cls.__checks__:
            return build(data)
        try:
            built = build(data)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            complaints = _complaints_about_the_rest(cls, data, errors) if isinstance(data, Mapping) else []
            raise _error(cls, errors, complaints) from None
        complaints = [complaint for rule in cls.__checks__ for complaint in rule(built)]
        if complaints:
            raise _error(cls, [], complaints)
        return built


def _complaints_about_the_rest(
    cls: type[Declared], data: Mapping[str, Any], errors: list[ErrorDetails]
) -> list[Complaint]:
    """The rules applied to the fields that are right; a rule that needs a wrong one is skipped."""
    wrong = {error["loc"][0] for error in errors if error["loc"]}
    right: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        key = field.alias if field.alias and field.alias in data else name
        if name in wrong or field.alias in wrong:
            continue
        right[name] = (
            _field(cls, name).validate_python(data[key])
            if key in data
            else field.get_default(call_default_factory=True)
        )
    partial = cls.__new__(cls)
    object.__setattr__(partial, "__dict__", right)
    complaints: list[Complaint] = []
    for rule in cls.__checks__:
        try:
            complaints += rule(partial)
        except AttributeError:  # a field that is wrong is absent here
            continue
    return complaints


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
    if kind == COMPLAINT:
        kind = complain(**ctx)
    elif kind not in PYDANTIC_KINDS:
        kind = PydanticCustomError(cast(LiteralString, kind), cast(LiteralString, error["msg"]))
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"], ctx=ctx)
