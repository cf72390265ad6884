"""A configuration file in a folder of its own, written from a few lines."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

SECRET = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()

GOOD = """\
[server]
port = 8080

[store]
url = "sqlite:///finch.db"

[[listings]]
name = "writer"
mount = "/finch/v2"

[listings.backend]
type = "python"
target = "agent:run"

[[listings.credentials]]
key_id = "finch.agenton.00000000-0000-4000-8000-000000000000"
request_secret = "env:REQUEST_SECRET"
callback_secret = "env:CALLBACK_SECRET"
"""

ENVIRON = {"REQUEST_SECRET": SECRET, "CALLBACK_SECRET": SECRET}

Write = Callable[[str], Path]


@pytest.fixture
def good() -> str:
    """A configuration with nothing wrong in it; complete with `environ`."""
    return GOOD


@pytest.fixture
def environ() -> dict[str, str]:
    """The variables that `good` refers to."""
    return dict(ENVIRON)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a text as `finch.toml` and returns the file."""

    def write_file(text: str) -> Path:
        file = tmp_path / "finch.toml"
        file.write_text(text, encoding="utf-8", newline="")
        return file

    return write_file
