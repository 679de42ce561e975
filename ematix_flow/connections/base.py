"""What all connections share: a name, a kind, fields that go together, and a display that shows no secret."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from ematix_flow.model import Complaint, check
from ematix_flow.problems import complain
from ematix_flow.secrets import MASK, Discreet, redact

Text = Annotated[str, StringConstraints(min_length=1)]
"""A string that has to say something."""

PathText = Annotated[Text, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]
"""A path as text; `pathlib` paths are accepted."""


def _as_properties_write_it(value: Any) -> Any:
    """Properties of Spark and Kafka are texts; `8` and `true` are as clear as `"8"` and `"true"`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Property = Annotated[
    str, BeforeValidator(_as_properties_write_it), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
"""The value of a property."""

_KNOWN_TYPES = frozenset(get_args(ErrorType))


class Connection(Discreet):
    """Where data is and how to get in. Declares only: nothing is opened, and `${...}` stays as written."""

    model_config = ConfigDict(hide_input_in_errors=True)

    driver_extra: ClassVar[str] = ""
    """The extra of this distribution that brings the driver; empty when none is needed."""

    together: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of fields that are set all or not at all; the empty string is not set."""

    name: str = ""
    """The name by which pipelines refer to this connection."""

    if TYPE_CHECKING:  # every kind declares its own, as its last field, so that it is never taken positionally
        kind: str = ""

    @check
    def fields_go_together(self) -> Iterator[Complaint]:
        for group in self.together:
            present = [field for field in group if getattr(self, field)]
            verb = "is" if len(present) == 1 else "are"
            for field in group if present else ():
                if field not in present:
                    found = f"missing: {listed(present)} {verb} set, and {listed(group)} go together"
                    yield Complaint((field,), found)

    @model_validator(mode="wrap")
    @classmethod
    def _without_secrets_in_errors(cls, given: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return build(given)
        except ValidationError as error:
            raise ValidationError.from_exception_data(cls.__name__, _showable(cls, error)) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for field, value in super().__repr_args__():
            if field != "kind" and value is not None and value != {}:
                yield field, value

    def __hash__(self) -> int:
        # A dict among the fields has no hash; equal connections have equal names, which is all a hash has to promise.
        return hash((type(self), self.name))


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _showable(cls: type[Connection], error: ValidationError) -> list[InitErrorDetails]:
    """The same errors with inputs that may be shown, so that whoever words them cannot print a secret."""
    details = []
    for e in error.errors(include_url=False):
        loc = tuple(step for step in e["loc"] if not str(step).startswith("<"))
        field = ".".join(map(str, loc))
        # The name of an unknown field tells nothing about its value: "pasword" holds a secret too.
        shown = MASK if e["type"] == "extra_forbidden" else redact(field, e["input"])
        facts = e.get("ctx", {})
        kind = e["type"] if e["type"] in _KNOWN_TYPES else _custom(e["type"], e["msg"], facts)
        if e["type"] == "extra_forbidden" and (field_meant := _synonym_of(cls, field)):
            kind = complain(f"given together with {field_meant}", "one of the two")
        details.append(InitErrorDetails(type=kind, loc=loc, input=shown, ctx=facts))
    return details


def _synonym_of(cls: type[Connection], key: str) -> str:
    """The field that a key is another word for."""
    for name, field in cls.model_fields.items():
        alias = field.validation_alias
        if isinstance(alias, AliasChoices) and key in alias.choices:
            return name
    return ""


def _custom(kind: Any, message: Any, facts: dict[str, Any]) -> PydanticCustomError:
    return PydanticCustomError(kind, message, facts)
