"""Looks at this machine without starting Spark: each check says ok, warning or problem, and what to do."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from ematix_flow.config import Found, list_connections
from ematix_flow.errors import FlowError
from ematix_flow.secrets import redact_text
from ematix_flow.state.home import home
from ematix_flow.streams.jars import cache_folder, locked

_DISTRIBUTION = "ematix-flow-spark"
_OLDEST_JAVA = 17
_NOT_FOR_USERS = {"all", "dev"}
# The driver's JVM takes 2 GiB by default, and Python workers need some, too.
_ENOUGH_MEMORY_GIB = 3.0
_ENOUGH_DISK_GIB = 1.0
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;\s*extra\s*==\s*['\"]([\w-]+)['\"])?")


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["ok", "warning", "problem"]
    found: str
    next_step: str = ""


def examine() -> list[Check]:
    """All checks; none of them stops another."""
    checks: list[Callable[[], Iterator[Check]]] = [
        _python, _java, _libraries, _machine, _home, _java_libraries, _extras, _connections,
    ]  # fmt: skip
    return [check for examined in checks for check in examined()]


def _python() -> Iterator[Check]:
    # An older one could not have read this module.
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _java() -> Iterator[Check]:
    given = os.environ.get("JAVA_HOME")
    command = shutil.which(str(Path(given) / "bin" / "java") if given else "java")
    install = f"install Java {_OLDEST_JAVA} (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME to one"
    if command is None:
        where = f"JAVA_HOME={given} has no bin/java" if given else "no java on the PATH, and JAVA_HOME is not set"
        yield Check("java", "problem", where, install)
        return
    try:
        words = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("java", "problem", f"{command} cannot be run: {error}", install)
        return
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', words)
    if found is None:
        yield Check("java", "problem", f"{command} does not tell its version", install)
    elif int(found[2]) < _OLDEST_JAVA:
        yield Check("java", "problem", f"{found[1]} ({command}) is too old", install)
    else:
        yield Check("java", "ok", f"{found[1]} ({command}{', from JAVA_HOME' if given else ''})")


def _libraries() -> Iterator[Check]:
    """What the distribution itself requires, as it was installed."""
    for package, wanted, extra in _requirements():
        if extra is None and package in ("pyspark", "pandas", "pyarrow", "duckdb"):
            found = _version(package)
            if found is None:
                yield Check(package, "problem", "not installed", f"pip install '{package}{wanted}'")
            elif not _fits(found, wanted):
                yield Check(package, "problem", f"{found}, but {wanted} is needed", f"pip install '{package}{wanted}'")
            else:
                yield Check(package, "ok", found)


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cores", "ok", str(cores))
    memory = _memory_gib()
    if memory < _ENOUGH_MEMORY_GIB:
        advice = 'lower the driver\'s: [spark] conf = {"spark.driver.memory" = "1g"}'
        yield Check("memory", "warning", f"{memory:.1f} GiB; Spark's driver alone may take 2", advice)
    else:
        yield Check("memory", "ok", f"{memory:.1f} GiB")


def _home() -> Iterator[Check]:
    folder = home()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Check("home", "problem", f"{folder} cannot be written", "set EMATIX_FLOW_HOME to a folder that can")
        return
    free = shutil.disk_usage(nearest).free / 2**30
    if free < _ENOUGH_DISK_GIB:
        found = f"{folder}: {free:.1f} GiB free"
        yield Check("home", "warning", found, "free some disk space: checkpoints and staged rows are kept there")
    else:
        yield Check("home", "ok", f"{folder} ({free:,.0f} GiB free)")


def _java_libraries() -> Iterator[Check]:
    given = os.environ.get("EMATIX_FLOW_JARS")
    folder = Path(given) if given else cache_folder()
    lock = locked()
    for group in dict.fromkeys(jar.group for jar in lock):
        wanted = [jar for jar in lock if jar.group == group]
        here = sum((folder / jar.file_name).is_file() for jar in wanted)
        name = f"jars {group}"
        if here == len(wanted):
            yield Check(name, "ok", f"{here} of {len(wanted)} in {folder}")
        elif given:
            found = f"{here} of {len(wanted)} in {folder} (EMATIX_FLOW_JARS)"
            yield Check(name, "warning", found, "`python -m ematix_flow.streams.jars --list` names the files")
        else:
            yield Check(name, "ok", f"{here} of {len(wanted)} fetched; the first pipeline that needs them fetches them")


def _extras() -> Iterator[Check]:
    for extra in _extra_names():
        if missing := _missing_for(extra):
            found = f"not installed (optional): {', '.join(missing)}; pip install '{_DISTRIBUTION}[{extra}]'"
            yield Check(f"extra {extra}", "ok", found)
        else:
            yield Check(f"extra {extra}", "ok", "installed")


def _connections() -> Iterator[Check]:
    try:
        found = list_connections()
    except FlowError as error:
        yield Check("connections", "problem", redact_text(str(error)), "correct the file")
        return
    if not found:
        yield Check("connections", "ok", "none is known by name outside of code")
    for one in found.values():
        yield _connection(one)


def _connection(found: Found) -> Check:
    name = f"connection {found.name}"
    if found.problem is not None or found.connection is None:
        words = " ".join(str(found.problem).split())
        return Check(name, "problem", redact_text(f"{found.origin}: {words}"), "correct its declaration")
    shown = redact_text(f"{found.connection!r} from {found.origin}")
    extra = found.connection.driver_extra
    if extra and _missing_for(extra):
        return Check(
            name, "warning", f"{shown}; its driver is not installed", f"pip install '{_DISTRIBUTION}[{extra}]'"
        )
    return Check(name, "ok", shown)


def _requirements() -> Iterator[tuple[str, str, str | None]]:
    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a source tree that is not installed
        lines = []
    for line in lines:
        if found := _REQUIREMENT.fullmatch(line.strip()):
            yield found[1], found[2].strip(), found[3]


def _extra_names() -> list[str]:
    return sorted({extra for _, _, extra in _requirements() if extra} - _NOT_FOR_USERS)


def _missing_for(extra: str) -> list[str]:
    return [package for package, _, of in _requirements() if of == extra and _version(package) is None]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _fits(found: str, wanted: str) -> bool:
    """Whether a version meets clauses such as `>=2.2,<3`."""
    has = _numbers(found)
    for clause in filter(None, wanted.split(",")):
        sign, number = re.match(r"\s*([<>=!~]+)\s*(.*)", clause).groups()  # type: ignore[union-attr]
        other = _numbers(number)
        fits = {">=": has >= other, "<": has < other, "==": has == other, "<=": has <= other, ">": has > other}
        if not fits.get(sign, True):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _memory_gib() -> float:
    """The machine's memory, or what the container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    return min(total, int(limit) if limit.isdigit() else total) / 2**30
