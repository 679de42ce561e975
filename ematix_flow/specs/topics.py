"""What the query of a Kafka source means: a topic, several with commas between them, or a pattern."""

from __future__ import annotations

import re

from ematix_flow.model import Complaint

_NO_PATTERN = re.compile(r"[A-Za-z0-9._,\s-]*")


def is_pattern(query: str) -> bool:
    """It has a character that no topic can have in its name."""
    return _NO_PATTERN.fullmatch(query) is None


def topic_names(query: str) -> list[str]:
    """Of a query that is no pattern."""
    return [name.strip() for name in query.split(",")]


def topics_complaint(query: str) -> Complaint | None:
    """What is wrong with it, or nothing."""
    if is_pattern(query):
        try:
            re.compile(query)
        except re.error as error:
            return Complaint(("query",), f'found "{query}", which is no pattern: {error}')
        return None
    for name in topic_names(query):
        if not name:
            return Complaint(("query",), f'found "{query}", where a topic has no name')
        if re.search(r"\s", name) or name in {".", ".."}:
            return Complaint(("query",), f'found "{name}", which no topic can be called', "topics with commas between")
    return None
