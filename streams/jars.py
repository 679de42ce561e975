"""Owns the Java libraries Spark needs: one locked list, fetched once through Spark's Ivy, checked at every start.

`$EMATIX_FLOW_JARS` names a folder that holds them already (a cluster, a machine without network): nothing is fetched
then. Otherwise they live in `$EMATIX_FLOW_JAR_CACHE`, by default `~/.cache/ematix-flow/jars`.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.streams.ivy import FETCHED

LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True)
class Jar:
    """One line of the lock."""

    group: str
    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def ivy_name(self) -> str:
        return f"{self.coordinate.split(':')[0]}_{self.file_name}"

    @property
    def title(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact} {version}"


class JarMismatch(FlowError):
    """A Java library whose content is not what the lock says."""

    code = "jar-mismatch"

    def __init__(self, jar: Jar, path: Path, found: str, next_step: str) -> None:
        self.jar, self.path, self.expected, self.actual = jar, path, jar.sha256, found
        super().__init__(
            f"{path} is not {jar.coordinate}\n  expected sha256 {jar.sha256}\n  found    sha256 {found}",
            next_step=next_step,
        )


class JarsMissing(FlowError):
    """Java libraries that are not in the folder the user named, all at once."""

    code = "jars-missing"

    def __init__(self, folder: Path, missing: Sequence[Jar]) -> None:
        self.folder, self.missing = folder, tuple(missing)
        lines = [f"{_count(missing)} missing in {folder} (EMATIX_FLOW_JARS):"]
        lines += [f"  - {jar.file_name}  ({jar.coordinate})" for jar in missing]
        super().__init__("\n".join(lines), next_step="copy them there, or unset EMATIX_FLOW_JARS to have them fetched")


class JarsNotFetched(FlowError):
    """The Java libraries could not be fetched; what was fetched before the failure is kept."""

    code = "jars-not-fetched"
    transient = True

    def __init__(self, jar: Jar, reason: str, log: Path) -> None:
        self.jar, self.reason, self.log = jar, reason, log
        super().__init__(
            f"{jar.coordinate} could not be fetched: {reason}",
            next_step=f"check the network and try again; Spark's own words are in {log}. "
            "Without network: put the files that `python -m ematix_flow.streams.jars --list` names "
            "into a folder and set EMATIX_FLOW_JARS to it",
        )


def jars(groups: Collection[str], *, lock: Sequence[Jar] | None = None) -> list[Path]:
    """The checked libraries of these groups, in the order of the lock; what is missing is fetched first."""
    lock = locked() if lock is None else lock
    known = {jar.group for jar in lock}
    if unknown := sorted(set(groups) - known):
        raise UsageError(
            f"no Java libraries are called {', '.join(unknown)}", next_step=f"use {', '.join(sorted(known))}"
        )
    wanted = [jar for jar in lock if jar.group in groups]
    if given := os.environ.get("EMATIX_FLOW_JARS"):
        return _from_folder(wanted, Path(given))
    cache = cache_folder()
    for jar in wanted:
        if (cache / jar.file_name).exists():
            _check(jar, cache / jar.file_name, "delete the file; the next start fetches it again")
    missing = [jar for jar in wanted if not (cache / jar.file_name).exists()]
    if missing:
        _fetch(missing, cache)
    return [cache / jar.file_name for jar in wanted]


def locked(file: Path = LOCK_FILE) -> tuple[Jar, ...]:
    """The lock: one `group coordinate sha256` per line, `#` begins a comment."""
    lines = (line.partition("#")[0].split() for line in file.read_text(encoding="utf-8").splitlines())
    return tuple(Jar(*words) for words in lines if words)


def cache_folder() -> Path:
    return Path(os.environ.get("EMATIX_FLOW_JAR_CACHE") or Path.home() / ".cache" / "ematix-flow" / "jars")


def relock(file: Path = LOCK_FILE) -> None:
    """Fetch every coordinate of the lock anew and write the hashes that were found."""
    lock = locked(file)
    with tempfile.TemporaryDirectory(prefix="ematix-flow-relock-") as temporary:
        fetched = {
            jar.coordinate: _digest(path)
            for jar, path in _resolve(lock, Path(temporary), Path(temporary) / "fetch.log")
        }
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if words := line.partition("#")[0].split():
            group, coordinate, *_ = words
            lines[number] = f"{group} {coordinate} {fetched[coordinate]}"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _from_folder(wanted: Sequence[Jar], folder: Path) -> list[Path]:
    if missing := [jar for jar in wanted if not (folder / jar.file_name).is_file()]:
        raise JarsMissing(folder, missing)
    for jar in wanted:
        _check(jar, folder / jar.file_name, f"replace the file with the one of {jar.coordinate}")
    return [folder / jar.file_name for jar in wanted]


def _fetch(missing: Sequence[Jar], cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    _say(f"fetching {_count(missing)} (first use only) ...")
    # A folder of its own per process, and a rename at the end: two starts at once never see half a file.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as temporary:
        for number, (jar, path) in enumerate(_resolve(missing, Path(temporary), cache / "fetch.log"), start=1):
            _check(
                jar,
                path,
                "the repository that Spark asks serves another file under this name: find out why before you use it",
            )
            path.replace(cache / jar.file_name)
            _say(f"  {number}/{len(missing)} {jar.title}")


def _resolve(wanted: Sequence[Jar], folder: Path, log: Path) -> Iterator[tuple[Jar, Path]]:
    """Each jar with the file Spark's Ivy put below `folder`, as soon as it is there."""
    command = [sys.executable, "-m", "ematix_flow.streams.ivy", str(folder), *(jar.coordinate for jar in wanted)]
    waiting = list(wanted)
    with (
        log.open("w", encoding="utf-8") as words,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=words, text=True, env=_plain_environment(os.environ)
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                if line.startswith(FETCHED):
                    jar = waiting.pop(0)
                    yield jar, folder / "jars" / jar.ivy_name
        except BaseException:
            process.terminate()
            raise
    if waiting:
        raise JarsNotFetched(waiting[0], _reason(log), log)


def _plain_environment(environment: os._Environ[str]) -> dict[str, str]:
    """Without what would send the throw-away session to a cluster or give it other arguments."""
    return {
        k: v for k, v in environment.items() if k not in {"SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "SPARK_CONNECT_MODE"}
    }


def _reason(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").strip() or "Spark did not start"
    from_java = re.search(r"^: [\w.]+: (.+)$", text, re.MULTILINE)
    return from_java[1] if from_java else text.splitlines()[-1]


def _check(jar: Jar, path: Path, next_step: str) -> None:
    found = _digest(path)
    if found != jar.sha256:
        raise JarMismatch(jar, path, found, next_step)


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _count(wanted: Sequence[Jar]) -> str:
    return "1 Java library" if len(wanted) == 1 else f"{len(wanted)} Java libraries"


def _say(line: str) -> None:
    print(f"ematix-flow: {line}", file=sys.stderr, flush=True)


def main(arguments: Iterable[str]) -> int:
    """Without arguments or with groups: fetch now. `--list`: name the files. `--relock`: write new hashes."""
    words = list(arguments)
    actions: dict[str, Callable[[], None]] = {"--list": _list, "--relock": relock}
    try:
        if words and words[0] in actions:
            actions[words[0]]()
        else:
            found = jars(words or {jar.group for jar in locked()})
            _say(f"{len(found)} Java libraries are ready in {found[0].parent}")
    except FlowError as error:
        _say(str(error))
        return error.exit_code
    return 0


def _list() -> None:
    for jar in locked():
        print(f"{jar.group:6} {jar.file_name:50} {jar.sha256} {jar.coordinate}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
