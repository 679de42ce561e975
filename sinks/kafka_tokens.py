"""Tokens to log in to Kafka with (SASL/OAUTHBEARER): from AWS for MSK, or from a function of the user's.

librdkafka calls a function for each. Java's client knows no function of ours; it asks an address for its tokens, as it
would ask a server of OAuth, and the address is in this process.
"""

from __future__ import annotations

import base64
import importlib
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ematix_flow.errors import DeclarationError, MissingExtra, Problem

Token = tuple[str, float]
"""And when it expires, in seconds since 1970."""


@dataclass(frozen=True)
class Endpoint:
    """Where Java gets tokens, if it knows the password."""

    url: str
    user: str
    password: str = field(repr=False)


def of_msk(region: str) -> Callable[[str], Token]:
    return partial(_from_aws, region)


def of_provider(name: str) -> Callable[[str], Token]:
    """Called by its name, and with where to look for it, because Spark's workers call it, too."""
    return partial(_from_function, name, tuple(sys.path))


def _from_aws(region: str, _: str) -> Token:
    """By AWS's own signer, with the credentials that AWS's tools find."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        raise MissingExtra("aws_msk_iam_sasl_signer", "msk") from None

    token, millis = MSKAuthTokenProvider.generate_auth_token(region)
    return token, millis / 1000


def _from_function(name: str, path: Sequence[str], _: str) -> Token:
    sys.path.extend(place for place in path if place not in sys.path)
    given = _function(name)()
    match given:
        case (str() as token, int() | float() as expires):
            return token, float(expires)
    raise TypeError(f"{name} gave {type(given).__name__}, not a token and the second since 1970 in which it expires")


@cache
def _function(name: str) -> Callable[[], Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[[], Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        problem = Problem("sasl_oauth_provider", f'"{name}" cannot be imported: {error}', "module:function")
        raise DeclarationError("Kafka connection", [problem]) from error
    return found


@cache
def endpoint(name: str) -> Endpoint:
    """One for each provider, as long as this process lives; on this machine alone."""
    known = secrets.token_urlsafe(32)

    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            basic = base64.b64encode(f"{name}:{known}".encode()).decode()
            if not secrets.compare_digest(self.headers.get("Authorization", ""), f"Basic {basic}"):
                self.send_error(401)
                return
            try:
                token, expires = of_provider(name)("")
            except Exception:  # noqa: BLE001 - Java asks again, and Python's client, asked before, tells the reason
                self.send_error(503)
                return
            answer = {"access_token": token, "token_type": "Bearer", "expires_in": int(expires - time.time())}
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """It would go to the user's terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Tokens)
    threading.Thread(target=server.serve_forever, name="kafka-tokens", daemon=True).start()
    return Endpoint(f"http://127.0.0.1:{server.server_port}/token", name, known)
