"""Signed tokens such as an identity provider gives out, for a broker that checks them."""

import base64
import json
import time
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

MODULE = "logins"
_NAME = "test-key"
_PROVIDERS = """
from pathlib import Path

from tests.services import tokens

KEY = Path({key!r})


def token():
    return tokens.signed(KEY)


def forged():
    return tokens.forged(KEY)


def absent():
    raise LookupError("the identity provider is closed on Sundays")
"""


def prepare(folder: Path) -> None:
    """A key, for the broker also in `jwks.json`; and the module that gives out tokens, for whoever can import it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "token.key").write_bytes(key.private_bytes(*form))
    numbers = key.public_key().public_numbers()
    words = {"n": _number(numbers.n), "e": _number(numbers.e), "kid": _NAME, "kty": "RSA", "alg": "RS256", "use": "sig"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [words]}), encoding="utf-8")
    text = _PROVIDERS.format(key=str(folder / "token.key"))
    (folder / f"{MODULE}.py").write_text(text, encoding="utf-8")


def signed(key: Path) -> tuple[str, float]:
    """For a minute."""
    expires = time.time() + 60
    return _signed(key, {"sub": "alice", "iat": int(time.time()), "exp": int(expires)}), expires


def forged(key: Path) -> tuple[str, float]:
    """The signature is another one's."""
    good, expires = signed(key)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    signature = other.sign(b"something else", padding.PKCS1v15(), hashes.SHA256())
    return f"{good.rpartition('.')[0]}.{_text(signature)}", expires


def _signed(file: Path, claims: dict[str, object]) -> str:
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    parts = ({"alg": "RS256", "kid": _NAME}, claims)
    content = ".".join(_text(json.dumps(part).encode()) for part in parts)
    return f"{content}.{_text(key.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
