"""What is secret and how it stays so: `${...}` references, redaction, the warning about inline credentials."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from ematix_flow.errors import DeclarationError, FlowError, Problem, SecretNotFound
from ematix_flow.model import Declared
from ematix_flow.origins import users_line
from ematix_flow.problems import problems_of, shown

__all__ = [
    "MASK",
    "Discreet",
    "Resolver",
    "expand",
    "expanded",
    "is_reference",
    "is_secret",
    "redact",
    "redact_text",
    "references",
    "register_resolver",
    "warn_inline_credentials",
]

MASK = "***"

M = TypeVar("M", bound=Declared)


class Resolver(Protocol):
    """Where `${prefix:reference}` comes from.

    `resolve` is called each time a connection is opened. It raises `LookupError` when there is no such secret.
    """

    def resolve(self, reference: str) -> str: ...


# --- references ---------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_ENV_NAME = re.compile(r"[A-Za-z_]\w*")
_ONLY_REFERENCES = re.compile(r"(?:\$\{[^{}]*\})+")
_BUILT_IN = ("aws", "gcp", "vault")

_resolvers: dict[str, Resolver | Callable[[str], str]] = {}


def register_resolver(prefix: str, resolver: Resolver | Callable[[str], str]) -> None:
    """Make `${prefix:reference}` call `resolver.resolve(reference)`, or `resolver(reference)` if it is a function.

    A later registration replaces an earlier one.
    """
    if not callable(getattr(resolver, "resolve", resolver)):
        problem = Problem("resolver", f"found {shown(resolver)}", "a function, or an object with resolve(reference)")
        raise DeclarationError("register_resolver", [problem], origin=users_line())
    _resolvers[prefix] = resolver


def expand(text: str, *, place: str = "") -> str:
    """Replace every `${VAR}` and `${prefix:reference}` in `text`; `$${` is a literal `${`.

    `place` says in errors where the reference was written. What a reference gives is not expanded again.
    """

    def value_of(match: re.Match[str]) -> str:
        reference = match.group(1)
        return "${" if reference is None else _resolved(reference, place)

    return _TOKEN.sub(value_of, text)


def expanded(model: M) -> M:
    """A copy of a declaration with all its references expanded, checked again; call it once, when opening."""
    name = getattr(model, "name", "")
    label = f'connection "{name}"' if name else type(model).__name__
    values = {
        field: getattr(model, field)
        if field in ("name", "kind")
        else _expanded_value(getattr(model, field), f"{label}, field {field}")
        for field in type(model).model_fields
    }
    try:
        return type(model).model_validate(values)
    except ValidationError as error:
        raise DeclarationError(label, problems_of(error, type(model))) from None


def references(model: BaseModel) -> Iterator[tuple[str, str]]:
    """Every `${...}` in a declaration, after the field that it stands in."""
    for field in type(model).model_fields:
        for text in _texts(getattr(model, field)):
            yield from ((field, found.group(0)) for found in _TOKEN.finditer(text) if found.group(1) is not None)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, BaseModel):
        yield from (reference for _, reference in references(value))
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def is_reference(value: object) -> bool:
    """Whether a value consists of `${...}` references only, and so says nothing secret."""
    return isinstance(value, str) and _ONLY_REFERENCES.fullmatch(value) is not None


def _expanded_value(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return expand(value, place=place)
    if isinstance(value, Declared):
        return expanded(value)
    if isinstance(value, Mapping):
        return {key: _expanded_value(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_expanded_value(item, place) for item in value)
    return value


def _resolved(reference: str, place: str) -> str:
    written = f"${{{reference}}}"
    where = f" ({place})" if place else ""
    prefix, colon, rest = reference.partition(":")
    if not colon:
        return _from_environment(reference, written, where)
    resolver = _resolver(prefix)
    if resolver is None:
        near = get_close_matches(prefix, {*_resolvers, *_BUILT_IN}, n=1)
        hint = f'did you mean "{near[0]}:"? Otherwise ' if near else ""
        raise SecretNotFound(
            f'{written}{where}: no resolver is registered for the prefix "{prefix}"',
            tried=[f"resolver {known}" for known in sorted({*_resolvers, *_BUILT_IN})],
            next_step=f'{hint}register_resolver("{prefix}", resolver) before opening the connection',
        )
    return _asked(resolver, rest, written, where)


def _from_environment(name: str, written: str, where: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise SecretNotFound(
            f"{written}{where} is not the name of an environment variable",
            next_step="write ${NAME} or ${vault:path#key}; $${ stands for a literal ${",
        )
    if name not in os.environ:
        raise SecretNotFound(
            f"{written}{where} cannot be resolved",
            tried=[f"environment variable {name}"],
            next_step=f"export {name}=...",
        )
    return os.environ[name]


def _resolver(prefix: str) -> Resolver | Callable[[str], str] | None:
    if prefix not in _resolvers and prefix in _BUILT_IN:
        from ematix_flow.connections.secret_stores import built_in

        _resolvers[prefix] = built_in(prefix)
    return _resolvers.get(prefix)


def _asked(resolver: Resolver | Callable[[str], str], reference: str, written: str, where: str) -> str:
    try:
        ask: Any = getattr(resolver, "resolve", resolver)
        value: object = ask(reference)
    except FlowError:
        raise
    except LookupError as error:
        reason = redact_text(_words_of(error))
        raise SecretNotFound(f"{written}{where} cannot be resolved", tried=[_tried(resolver, reason)]) from None
    except Exception as error:  # noqa: BLE001 - clients of secret stores raise anything; the user needs one sentence
        reason = f"{type(error).__name__}: {redact_text(str(error))}"
        raise SecretNotFound(f"{written}{where} cannot be resolved", tried=[_tried(resolver, reason)]) from None
    if not isinstance(value, str):
        kind = type(value).__name__
        raise SecretNotFound(f"{written}{where}: {_called(resolver)} returned {kind}, not a string")
    return value


def _words_of(error: LookupError) -> str:
    """A KeyError often holds nothing but the key that a dict does not have."""
    said = str(error.args[0]) if error.args else ""
    return said if " " in said else f'it knows no "{said}"' if said else "it knows no such secret"


def _tried(resolver: object, reason: str) -> str:
    return f"{_called(resolver)}: {reason}"


def _called(resolver: object) -> str:
    return str(getattr(resolver, "__name__", type(resolver).__name__))


# --- redaction ----------------------------------------------------------------------------------------------------

_SECRET_FIELD = re.compile(r"password|passwd|passphrase|secret|token|key|user[._]info", re.IGNORECASE)
# In free text "key" alone is an ordinary word (primary_key=id), so there it counts only with what makes it a secret.
_WORDS = r"password|passwd|pwd|passphrase|secret|token|user[._]info|(?:api|access|private|ssl|account|shared)[_.\-]?key"
_WORD = rf"[\w.\-]*(?:{_WORDS})[\w.\-]*"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
# The password ends at the LAST @: an unescaped @ inside it must not let its tail through.
_URL = r"([A-Za-z][A-Za-z0-9+.\-]{0,30}://(?:\$\{[^{}]*\}|[^\s:/?#])*):(%s)@"
_URL_IN_TEXT = re.compile(_URL % r"\S*")
_URL_VALUE = re.compile(_URL % r".*", re.DOTALL)
# A bare value goes to the next space; what closes the text around it, or begins the next setting, is not part of it.
_BARE = r"(?:\$\{[^{}]*\}|[^\s&])+?(?=[\"'`;,)\]}]{0,5}(?:[\s&]|$)|;[\w.\-]{1,50}=)"
_QUERY = re.compile(rf"([?&][^=&\s]*(?:{_SECRET_FIELD.pattern})[^=&\s]*=)({_BARE}|)", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(\b{_WORD}\s*=\s*)({_QUOTED}|{_BARE})", re.IGNORECASE)
_JSON_MEMBER = re.compile(rf"([\"']{_WORD}[\"']\s*:\s*)({_QUOTED}|[^\s,}}\]]+)", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"(\b(?:Bearer|Basic)\s+)([A-Za-z0-9+/._~\-]{8,}=*)")


def is_secret(field: str) -> bool:
    """Whether a field of this name holds a secret."""
    return _SECRET_FIELD.search(field) is not None


def redact(field: str, value: Any) -> Any:
    """`value` as it may be shown: secrets become `***`, references such as `${VAR}` stay readable."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {key: redact(f"{field}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact(field, item) for item in value)
    if is_secret(field):
        return value if value == "" or is_reference(value) else MASK
    return redact_text(_URL_VALUE.sub(_masked_url, value)) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """A log line or message without passwords in URLs, `password=...`, JSON members and authorization headers."""
    text = _URL_IN_TEXT.sub(_masked_url, text)
    for pattern in (_QUERY, _ASSIGNED, _JSON_MEMBER, _AUTHORIZATION):
        text = pattern.sub(_masked_value, text)
    return text


def _masked_url(match: re.Match[str]) -> str:
    start, password = match.groups()
    return f"{start}:{password if password == '' or is_reference(password) else MASK}@"


def _masked_value(match: re.Match[str]) -> str:
    start, value = match.groups()
    quote = value[0] if value[:1] in ("'", '"') else ""
    return match.group(0) if is_reference(value.strip("'\"")) else f"{start}{quote}{MASK}{quote}"


class Discreet(Declared):
    """A declaration that may hold secrets, and never shows one."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for field in type(self).model_fields:
            yield field, redact(field, getattr(self, field))


# --- inline credentials -------------------------------------------------------------------------------------------

# Named like secrets, but what they hold is a file name, a class name or a setting.
_NOT_A_CREDENTIAL = re.compile(
    r"(?:location|path|serializer|type|alias|store|keytab|policy|bits)$|^ssl_key$", re.IGNORECASE
)

# In the environment, because the child processes of a daemon read the same file again.
_WARNED_FILES = "EMATIX_FLOW_WARNED_FILES"


def warn_inline_credentials(declared: Discreet, file: str | Path) -> None:
    """Warn, once per file, when a connection or another table of `file` has a credential in plain text."""
    fields = list(_inline_credentials(declared))
    place = str(Path(file).absolute())
    warned = os.environ.get(_WARNED_FILES, "")
    if not fields or place in warned.split(os.pathsep):
        return
    os.environ[_WARNED_FILES] = f"{warned}{os.pathsep}{place}"
    name = str(getattr(declared, "name", "") or getattr(declared, "kind", "") or "spark")
    what = f'connection "{name}"' if "name" in type(declared).model_fields else type(declared).__name__
    variable = re.sub(r"\W", "_", f"{name}_password" if "url" in fields[0] else f"{name}_{fields[0]}").upper()
    warnings.warn(
        f"{file}: {what} has credentials in plain text ({', '.join(fields)}); "
        f"keep them out of the file with an environment variable, for example ${{{variable}}}",
        UserWarning,
        stacklevel=2,
    )


def _inline_credentials(conn: BaseModel) -> Iterator[str]:
    for field in type(conn).model_fields:
        value = getattr(conn, field)
        if isinstance(value, BaseModel):
            yield from (f"{field}.{inner}" for inner in _inline_credentials(value))
        elif isinstance(value, Mapping):
            yield from (f"{field}.{key}" for key, item in value.items() if _is_inline(f"{field}.{key}", item))
        elif _is_inline(field, value):
            yield field


def _is_inline(field: str, value: object) -> bool:
    if not isinstance(value, str) or redact(field, value) == value:
        return False
    if is_secret(field):
        is_file = _NOT_A_CREDENTIAL.search(field) is not None and "-----BEGIN" not in value
        return "${" not in value and not is_file
    return True
