"""`/metrics`, `/healthz` and `/readyz` over HTTP, while a pipeline runs."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ematix_flow.errors import FlowError
from ematix_flow.ops.health import Answer, Health
from ematix_flow.ops.metrics import Metrics
from ematix_flow.specs import PipelineSpec

if TYPE_CHECKING:
    from ematix_flow.streams.runner import BatchReport

_log = logging.getLogger(__name__)

HOST = "EMATIX_FLOW_METRICS_HOST"
# A scraper comes from outside the container; the numbers hold no secret and no row.
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104
_SHORTEST_PAUSE_SECONDS = 0.1


class MetricsPortTaken(FlowError):
    """The port for metrics cannot be opened."""

    code = "metrics-port"


@dataclass(frozen=True)
class Watch:
    """What a run tells about itself while it runs."""

    metrics: Metrics
    health: Health
    url: str | None = None
    """Where it is served, if it is."""

    def batch(self, report: BatchReport) -> None:
        self.metrics.batch(report)
        self.health.batch(report)


@contextmanager
def watched(spec: PipelineSpec, port: int | None, *, restarts: int = 0) -> Iterator[Watch]:
    """Count what a run does, and serve it while it lasts if there is a port; 0 chooses a free one."""
    metrics, health = Metrics(spec, restarts=restarts), Health()
    server = None if port is None else _serve(metrics, health, port)
    url = None if server is None else "http://{}:{}/metrics".format(*server.server_address[:2])
    over = threading.Event()
    if url is not None:
        _log.info("serving", extra={"pipeline": spec.name, "url": url})
        pause = max(_SHORTEST_PAUSE_SECONDS, spec.idle_pause_ms / 1000)
        threading.Thread(target=_count_idle, args=(metrics, health, pause, over), name="idle", daemon=True).start()
    try:
        yield Watch(metrics, health, url)
        health.ended("the pipeline has ended")
    except BaseException as error:
        metrics.failed()
        health.ended(f"the pipeline failed: {type(error).__name__}")
        raise
    finally:
        over.set()
        if server is not None:
            server.shutdown()
            server.server_close()


def _count_idle(metrics: Metrics, health: Health, pause: float, over: threading.Event) -> None:
    """Spark looks for input after each pause, and tells nobody that it found none."""
    while not over.wait(pause):
        if health.idle():
            metrics.idle()


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, metrics: Metrics, health: Health) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.metrics, self.health = metrics, health
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no event of the pipeline."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    # A client that says nothing must not hold its thread for ever.
    timeout = 10

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            self._send(200, "text/plain; version=0.0.4; charset=utf-8", self.server.metrics.text())
        elif path == "/healthz":
            self._answer(self.server.health.alive())
        elif path == "/readyz":
            self._answer(self.server.health.ready())
        else:
            self._json(404, {"error": f"there is no {path}; there are /metrics, /healthz and /readyz"})

    def log_message(self, format: str, *args: object) -> None:
        """A probe every second would drown the log."""

    def _answer(self, answer: Answer) -> None:
        self._json(200 if answer.ok else 503, {"ok": answer.ok, "reason": answer.reason})

    def _json(self, status: int, body: dict[str, object]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _serve(metrics: Metrics, health: Health, port: int) -> _Server:
    host = os.environ.get(HOST) or _EVERY_ADDRESS
    try:
        server = _Server(host, port, metrics, health)
    except OSError as error:
        raise MetricsPortTaken(
            f"metrics cannot be served on {host}:{port}: {error.strerror or error}",
            next_step=f"choose another --metrics-port (0 takes a free one), or another address with {HOST}",
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
