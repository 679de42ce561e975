"""Programs that tests talk to: each with its own folder, port and process group, all of them ended with the tests."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

_READY_SECONDS = 30.0
_END_SECONDS = 15.0

_made: list["Server"] = []


class Server(ABC):
    """A subclass knows the command and when the server answers. It may be started again, on the same port and data."""

    user: str | None = None
    """Who runs it, for programs that refuse to run as root; whoever runs the tests without it."""
    ends_by = signal.SIGTERM
    """Ends the server and everything that it started."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{type(self).__name__.lower()}-"))
        self.port = free_port()
        if self.runs_as:
            shutil.chown(self.folder, self.runs_as)
        self._process: subprocess.Popen[bytes] | None = None
        _made.append(self)

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves requests, not only whether its port is open."""

    @property
    def runs_as(self) -> str | None:
        return self.user if os.geteuid() == 0 else None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self) -> None:
        assert self._process is None, "it is running"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, start_new_session=True, cwd=self.folder, **self._identity()
            )
        deadline = time.monotonic() + _READY_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{type(self).__name__} does not answer:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.02)

    def stop(self, by: signal.Signals | None = None) -> None:
        """The process first, so that it can end its own, then whatever is left of its group."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(by or self.ends_by)
        try:
            process.wait(_END_SECONDS)
        finally:
            if _is_there(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_END_SECONDS)

    def run(self, *command: str, stdin: Path | None = None) -> None:
        """A command that ends, as the user who runs the server."""
        given = stdin.read_text(encoding="utf-8") if stdin else None
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, cwd=self.folder, **self._identity(), check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} fails:\n{done.stderr}")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)
        _made.remove(self)

    def _identity(self) -> dict[str, object]:
        if not self.runs_as:
            return {}
        return {"user": self.runs_as, "group": pwd.getpwnam(self.runs_as).pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def end_all() -> None:
    for server in tuple(_made):
        server.remove()


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
