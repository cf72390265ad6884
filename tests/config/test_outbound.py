"""Where dispatch URLs may lead is said in the file, and local work cannot be allowed by accident (wire 9.1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from finch_gateway.config import OutboundSettings, load
from finch_gateway.errors import ConfigError


@pytest.fixture
def outbound(write: Callable[[str], Path], good: str, environ: dict[str, str]) -> Callable[[str], OutboundSettings]:
    return lambda lines: load(write(f"{good}\n[outbound]\n{lines}\n"), environ).outbound


def test_without_the_section_any_public_host_is_allowed_and_nothing_private(
    write: Callable[[str], Path], good: str, environ: dict[str, str]
) -> None:
    assert load(write(good), environ).outbound == OutboundSettings((), False, 86400)


def test_what_is_written_is_read(outbound: Callable[[str], OutboundSettings]) -> None:
    read = outbound(
        'allow_hosts = ["*.finch.example", "127.0.0.1", "::1"]\nallow_private = true\ncallback_schedule_s = 5'
    )
    assert read == OutboundSettings(("*.finch.example", "127.0.0.1", "::1"), True, 5)


def test_a_callback_is_not_forgotten_before_its_schedule_is_over(
    write: Callable[[str], Path], good: str, environ: dict[str, str]
) -> None:
    short = {**environ, "FINCH_GATEWAY_STORE__RETENTION_DAYS": "0.5"}
    with pytest.raises(ConfigError, match="callback_schedule_s"):
        load(write(good), short)
    shorter = {**short, "FINCH_GATEWAY_OUTBOUND__CALLBACK_SCHEDULE_S": "3600"}
    assert load(write(good), shorter).store.retention_days == 0.5


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("allow_private = true", "allow_hosts"),
        ("allow_private = 1", "true or false"),
        ('allow_hosts = "finch.example"', "must list host names"),
        ('allow_hosts = ["https://finch.example"]', "must list host names"),
        ('allow_hosts = ["Finch.example"]', "lower case"),
        ('allow_hosts = ["*"]', "must list host names"),
        ("callback_schedule_s = 0", "number from 1"),
        ('allow_host = ["x"]', "did you mean allow_hosts?"),
    ],
)
def test_a_wrong_rule_is_named(outbound: Callable[[str], OutboundSettings], lines: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"outbound\.") as caught:
        outbound(lines)
    assert said in str(caught.value)
