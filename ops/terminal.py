"""The two streams of the terminal: results on stdout; progress, warnings and errors on stderr, which may be live."""

from __future__ import annotations

import os
import shutil
import sys
import threading

import click

_BACK_TO_AN_EMPTY_LINE = "\r\x1b[2K"


class Stderr:
    """Lines that stay, and one live line at the bottom that the next write replaces.

    It never raises: a reader of stderr that went away must not end a pipeline.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live = False

    @property
    def is_terminal(self) -> bool:
        # Looked up at each call: a program that calls `main` may have replaced the stream.
        return sys.stderr.isatty()

    def line(self, text: str) -> None:
        with self._lock:
            self._write(f"{self._erased()}{text}\n")

    def live(self, text: str) -> None:
        """Show `text` until the next write; only for a terminal."""
        with self._lock:
            width = shutil.get_terminal_size().columns - 1
            self._write(self._erased() + text[:width])
            self._live = True

    def clear(self) -> None:
        with self._lock:
            self._write(self._erased())

    def _erased(self) -> str:
        was_live, self._live = self._live, False
        return _BACK_TO_AN_EMPTY_LINE if was_live else ""

    @staticmethod
    def _write(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass


def show(text: str) -> None:
    """Print a result on stdout. A reader that has seen enough (`flow list | head -1`) ends the command quietly."""
    try:
        click.echo(text)
    except BrokenPipeError:
        # Python flushes stdout once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
