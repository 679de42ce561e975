"""A network that a test can spoil: toxiproxy between a broker and its clients."""

import functools
import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.services.golang import built
from tests.services.kafka import OwnKafka
from tests.services.server import Server, free_port

VERSION = "v2.12.0"
_MODULE = "github.com/Shopify/toxiproxy/v2"


class Toxiproxy(Server):
    def __init__(self) -> None:
        super().__init__()
        self.start()

    def command(self) -> Sequence[str]:
        return [str(_program()), "-host", "127.0.0.1", "-port", str(self.port)]

    def answers(self) -> bool:
        with suppress(URLError, OSError):
            return bool(self.ask("GET", "/version"))
        return False

    def forward(self, name: str, listen: int, to: int) -> None:
        places = {"listen": f"127.0.0.1:{listen}", "upstream": f"127.0.0.1:{to}"}
        self.ask("POST", "/proxies", {"name": name, **places, "enabled": True})

    @contextmanager
    def spoiled(self, name: str, kind: str, **attributes: int) -> Iterator[None]:
        """Both ways, until the end of the block."""
        for stream in ("upstream", "downstream"):
            toxic = {"name": stream, "type": kind, "stream": stream, "attributes": attributes}
            self.ask("POST", f"/proxies/{name}/toxics", toxic)
        try:
            yield
        finally:
            for stream in ("upstream", "downstream"):
                self.ask("DELETE", f"/proxies/{name}/toxics/{stream}")

    @contextmanager
    def cut(self, name: str) -> Iterator[None]:
        self.ask("POST", f"/proxies/{name}", {"enabled": False})
        try:
            yield
        finally:
            self.ask("POST", f"/proxies/{name}", {"enabled": True})

    def ask(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bytes(answer.read())


class ProxiedKafka(OwnKafka):
    """Also has a listener behind a proxy, where all that a client hears of the cluster leads back to the proxy."""

    def __init__(self, proxy: Toxiproxy) -> None:
        self.proxied_port, self._behind = free_port(), free_port()
        proxy.forward("kafka", self.proxied_port, self._behind)
        super().__init__()

    def properties(self, controller: int) -> dict[str, Any]:
        plain = super().properties(controller)
        return plain | {
            "listeners": f"{plain['listeners']},PROXIED://127.0.0.1:{self._behind}",
            "advertised.listeners": f"{plain['advertised.listeners']},PROXIED://127.0.0.1:{self.proxied_port}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},PROXIED:PLAINTEXT",
        }


@functools.cache
def _program() -> Path:
    return built("toxiproxy", _MODULE, VERSION, "cmd/server")
