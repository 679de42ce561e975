"""Plays a page of the documentation: every fenced block of it runs, in order, in the current folder.

    python snippets.py PAGE.md             exit 1 and say where, if something is not as the page shows it
    python snippets.py PAGE.md --update    write what really came out into the page

| block | what happens |
|---|---|
| `toml NAME`, `jsonl NAME`, `python NAME` | is written to the file NAME |
| `toml NAME` with a pipeline | is also validated, unless its name is `broken.toml` |
| `python` | runs; a `text` block right after it is what it prints |
| `console` | every line after `$ ` runs; the lines below it are its output |
| `text picture` | nothing to run |
| `text demo` | lines that `make demo` prints; tests/e2e/test_demo.py compares them |

Anything else is an error, so that no snippet stays untried. Pages show no durations, because they say more about the
machine than about the product, and the folder is shown as /home/ada/shop.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HOME = "/home/ada/shop"

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_DURATION = re.compile(r"\b\d+\.\d+ s\b")
# On a terminal these are one live line that is gone at the end.
_PROGRESS = re.compile(r"^\S+(: starting Spark \.\.\.| batch \d+: .*)\n", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    name: str
    body: str
    span: tuple[int, int]
    """Where the body is in the page."""
    line: int


def blocks(page: str) -> Iterator[Block]:
    for fence in _FENCE.finditer(page):
        language, _, name = fence["info"].strip().partition(" ")
        yield Block(language, name, fence["body"], fence.span("body"), page.count("\n", 0, fence.start()) + 1)


class Player:
    def __init__(self, page: Path) -> None:
        self.page, self.text = page, page.read_text(encoding="utf-8")
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.wrong: list[str] = []
        self.really: list[tuple[tuple[int, int], str]] = []
        """Place in the page -> what stands there when it is right."""

    def play(self) -> None:
        printed: str | None = None
        for block in blocks(self.text):
            try:
                printed = self._play(block, printed)
            except Exception:  # noqa: BLE001 - a page with a bad snippet is told about the others too
                self.wrong.append(f"{self.page.name}:{block.line}: {traceback.format_exc()}")
                printed = None

    def updated(self) -> str:
        text = self.text
        for (start, end), body in sorted(self.really, reverse=True):
            text = text[:start] + body + text[end:]
        return text

    def _play(self, block: Block, printed: str | None) -> str | None:
        match block:
            case Block("text", "picture" | "demo"):
                return None
            case Block("text", "") if printed is not None:
                self._compare(block, printed)
                return None
            case Block("python", ""):
                return self._run_python(block)
            case Block("console", ""):
                self._run_console(block)
                return None
            case Block("toml" | "jsonl" | "python", name) if name:
                self._write(Path(name), block.body)
                return None
        raise AssertionError(f"no rule says how to try a block of {block.language!r} {block.name!r}")

    def _write(self, file: Path, body: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body, encoding="utf-8")
        if file.suffix == ".toml" and file.stem != "broken" and "pipeline_name" in body:
            from ematix_flow.streams.built import refuse_what_is_not_built
            from ematix_flow.streams.guarantee import guarantees
            from ematix_flow.toml import load_toml

            for spec in load_toml(file):
                refuse_what_is_not_built(spec)
                assert guarantees(spec)

    def _run_python(self, block: Block) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.body, f"{self.page.name}:{block.line}", "exec"), self.names)
        return out.getvalue()

    def _run_console(self, block: Block) -> None:
        parts = re.split(r"(?m)^\$ (.*\n)", block.body)
        really = ""
        for command in parts[1::2]:
            really += f"$ {command}{run(command.strip())}"
        self._compare(block, really)

    def _compare(self, block: Block, really: str) -> None:
        really = _DURATION.sub("... s", really.replace(str(Path.cwd()), HOME))
        self.really.append((block.span, really))
        if _plain(really) != _plain(block.body):
            self.wrong.append(f"{self.page.name}:{block.line}: shows\n{block.body}\nbut it is\n{really}")


def run(command: str) -> str:
    """What a command prints. `flow` runs in this process, so that all of them share one Spark."""
    words = shlex.split(command, comments=True)
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = words[len(given) :]
    if program == "make":
        assert re.search(rf"(?m)^{arguments[0]}:", (ROOT / "Makefile").read_text()), f"no such target: {arguments[0]}"
        return ""
    if program in {"printf", "rm"}:
        return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
    assert program == "flow", f"no rule says how to try {program}"
    if "EMATIX_FLOW_CRASH_AT" in given:
        flow = Path(sys.executable).with_name("flow")
        ended = subprocess.run([flow, *arguments], env=os.environ | given, capture_output=True, text=True, check=False)
        return "Killed\n" if ended.returncode == -9 else f"exit code {ended.returncode}\n{ended.stderr}"
    return _run_flow(arguments, given)


def _run_flow(arguments: list[str], given: dict[str, str]) -> str:
    from ematix_flow.ops.cli import main

    before = dict(os.environ)
    os.environ.update(given)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
            main(arguments)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return out.getvalue() + _PROGRESS.sub("", errors.getvalue())


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def main() -> None:
    os.environ.pop("EMATIX_FLOW_HOME", None)  # its default is part of what the pages show
    sys.path.insert(0, str(Path.cwd()))
    player = Player(Path(sys.argv[1]))
    player.play()
    if "--update" in sys.argv:
        player.page.write_text(player.updated(), encoding="utf-8")
    if player.wrong:
        sys.exit("\n\n".join(player.wrong))


if __name__ == "__main__":
    main()
