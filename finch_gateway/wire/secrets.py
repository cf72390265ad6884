"""From the secret that Finch displays to the bytes that key the HMAC (wire 1.10)."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Literal

WireProtocol = Literal["finch_v2", "agenton_v0"]

SECRET_BYTES = 32
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")


class SecretError(ValueError):
    """The displayed secret cannot be used; the message says why and never repeats it."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The key bytes, and what was odd but harmless about how they were written."""

    key: bytes
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "Secret(…)"


def read_secret(displayed: str, wire_protocol: WireProtocol) -> Secret:
    """Return the key bytes of a displayed secret; raise `SecretError` when it is not one (wire 1.10)."""
    return _read_text(displayed) if wire_protocol == "agenton_v0" else _read_base64url(displayed)


def _read_text(displayed: str) -> Secret:
    if not displayed:
        raise SecretError("is empty")
    if displayed != displayed.strip():
        raise SecretError("has white space before or after it; remove it")
    if len(displayed) > 1 and displayed[0] == displayed[-1] and displayed[0] in "\"'":
        raise SecretError("is wrapped in quotes; remove them")
    try:
        return Secret(displayed.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise SecretError("is not valid UTF-8 text") from error


def _read_base64url(displayed: str) -> Secret:
    warnings = []
    text = displayed.strip()
    if text != displayed:
        warnings.append("has white space around it, which was ignored")
    if text.endswith("="):
        warnings.append("has '=' padding, which Finch does not show")
        text = text.rstrip("=")
    if "+" in text or "/" in text:
        warnings.append("uses the standard Base64 alphabet instead of Base64URL")
        text = text.replace("+", "-").replace("/", "_")
    if not text:
        raise SecretError("is empty")
    if not _BASE64URL.fullmatch(text):
        raise SecretError("holds characters outside Base64URL; copy the value again, without quotes or breaks")
    if re.fullmatch(r"[0-9a-f]{64}", text):
        raise SecretError("is 64 hex digits; a finch_v2 secret is Base64URL of 32 bytes, 43 characters")
    try:
        key = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise SecretError("is not Base64URL of whole bytes; copy the value again") from error
    if len(key) != SECRET_BYTES:
        raise SecretError(f"decodes to {len(key)} bytes; a finch_v2 secret is exactly {SECRET_BYTES}, 43 characters")
    if base64.urlsafe_b64encode(key).rstrip(b"=").decode() != text:
        raise SecretError("is not canonical Base64URL: its last character is wrong; copy the value again")
    return Secret(key, tuple(warnings))
