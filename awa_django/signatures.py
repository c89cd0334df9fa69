"""Signatures and addresses of callbacks that arrive over HTTP (contract: api/callbacks section 4).

A signature is the keyed BLAKE3 hash of the callback id alone. It covers neither body nor action nor time: whoever
holds it may complete, fail or prolong that callback until its token dies. Send it over TLS only and never log it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable

from blake3 import blake3

from awa_django.errors import ConfigurationError

__all__ = [
    "DEFAULT_PATH_PREFIX",
    "SECRET_BYTES",
    "SIGNATURE_HEADER",
    "build_callback_url",
    "parse_secret",
    "sign",
    "verify",
]

#: The header that carries a signature.
SIGNATURE_HEADER = "X-Awa-Signature"
#: Where awa's own receivers listen.
DEFAULT_PATH_PREFIX = "/api/callbacks"
#: The length of a secret, which is the key itself: nothing is derived from it.
SECRET_BYTES = 32

_SECRET = re.compile(rf"[0-9a-fA-F]{{{2 * SECRET_BYTES}}}")
#: What is white space in Unicode; ``str.strip`` alone would take the separators U+001C to U+001F for it too.
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_SIGNATURE = re.compile(r"[0-9a-fA-F]{64}")


def parse_secret(text: str, *, name: str = "callback secret") -> bytes:
    """A secret from its 64 hex digits, as configuration holds it.

    Raises ``ConfigurationError``, which starts with ``name`` and does not repeat the text, since a mistyped secret
    is one all the same.
    """
    if not isinstance(text, str):
        raise ConfigurationError(
            f"{name}: {2 * SECRET_BYTES} hex digits are needed, not {type(text).__name__}"
        )
    if not _SECRET.fullmatch(text):
        fault = (
            f"{len(text)} characters"
            if len(text) != 2 * SECRET_BYTES
            else "something else among its characters"
        )
        raise ConfigurationError(
            f"{name}: {2 * SECRET_BYTES} hex digits ({SECRET_BYTES} bytes) are needed, not {fault}; "
            "make one with: openssl rand -hex 32"
        )
    return bytes.fromhex(text)


def _digest(callback_id: str, secret: bytes) -> str:
    if not isinstance(secret, bytes | bytearray | memoryview):
        raise TypeError(f"a callback secret is bytes, not {type(secret).__name__}; see parse_secret()")
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"callback secret must be exactly {SECRET_BYTES} bytes (got {len(secret)})")
    return blake3(callback_id.encode(), key=bytes(secret)).hexdigest()


def sign(callback_id: str, secret: bytes) -> str:
    """The signature of a callback id, 64 lower-case hex digits.

    The id is signed as it is spelled. Raises ``ValueError`` for a secret of another length than 32 bytes,
    ``TypeError`` for one that is no bytes.
    """
    return _digest(callback_id, secret)


def verify(callback_id: str, signature: str, secrets: Iterable[bytes]) -> bool:
    """Whether ``signature`` is that of ``callback_id`` under any of ``secrets``.

    While a secret is replaced, give the new one first, to sign with, and the old one after it. Hex digits of any
    case are accepted and nothing beside them. Takes as long for a wrong signature as for a right one, whichever
    secret it belongs to; a text that cannot be a signature, or an id that is no text, is refused at once.
    Raises as :func:`sign` does for a secret that cannot be one.
    """
    plausible = _SIGNATURE.fullmatch(signature) is not None
    given = signature.lower() if plausible else "0" * 64
    found = False
    for secret in secrets:
        try:
            expected = _digest(callback_id, secret)
        except UnicodeEncodeError:  # a lone surrogate, as a URL may hold; nothing signed that
            return False
        found |= hmac.compare_digest(expected, given)
    return found and plausible


def build_callback_url(base: str, prefix: str, callback_id: str, action: str) -> str:
    """The address of one action of a callback.

    ``base`` loses its trailing slashes; ``prefix`` surrounding spaces and trailing slashes, and gets a leading one
    unless it is empty; the id and the action are inserted as they are.
    """
    path = prefix.strip(_SPACES).rstrip("/")
    if path and not path.startswith("/"):
        path = f"/{path}"
    return f"{base.rstrip('/')}{path}/{callback_id}/{action}"
