"""What scd2 means, said as plainly as possible: one event after the other, over lists."""

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Version:
    name: Any
    start: datetime
    end: datetime | None


class History:
    def __init__(self) -> None:
        self._versions: dict[Any, list[Version]] = defaultdict(list)

    def take(self, events: list[tuple[Any, Any, datetime]]) -> None:
        """One batch of (key, name, time), in the order in which they came: for one time, the last counts."""
        last = {(key, time): name for key, name, time in events}
        for (key, time), name in sorted(last.items(), key=lambda item: item[0][1]):
            self._versions[key] = _with(self._versions[key], name, time)

    def rows(self) -> list[tuple[Any, Any, datetime, datetime | None, bool]]:
        return [
            (key, v.name, v.start, v.end, v.end is None) for key, versions in self._versions.items() for v in versions
        ]


def _with(versions: list[Version], name: Any, time: datetime) -> list[Version]:
    for i, version in enumerate(versions):
        if version.start == time:
            return [*versions[:i], replace(version, name=name), *versions[i + 1 :]]
    before = [version for version in versions if version.start < time]
    after = versions[len(before) :]
    if not before:
        return [Version(name, time, after[0].start if after else None), *after]
    if before[-1].name == name:
        return versions
    return [*before[:-1], replace(before[-1], end=time), Version(name, time, before[-1].end), *after]
