"""From configured secrets to listings, with the file's problems and the secrets' reported together."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from finch_gateway.config import PathSettings, load
from finch_gateway.errors import ConfigError
from finch_gateway.listing import build_listings, load_all, read_all
from finch_gateway.wire.signing import SigningKey

REQUEST, CALLBACK = bytes(range(32)), bytes(range(32, 64))


def shown(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


ENVIRON = {"REQUEST": shown(REQUEST), "CALLBACK": shown(CALLBACK)}
CONFIG = """
[[listings]]
name = "writer"
mount = "/finch/v2"
backend = { type = "python", target = "agent:run" }
paths = { invoke = "/turns" }
on_crash = "fail"
capabilities = "Writes."

[[listings.credentials]]
key_id = "finch.agenton.00000000-0000-4000-8000-000000000000"
request_secret = "env:REQUEST"
callback_secret = "env:CALLBACK"
service_version_id = "v1"

[[listings.credentials]]
key_id = "finch.agenton.11111111-0000-4000-8000-000000000000"
request_secret = "env:REQUEST"
state = "retiring"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "finch.toml"
    file.write_text(CONFIG)
    return file


def test_a_listing_holds_what_was_configured(file: Path) -> None:
    [listing] = build_listings(load(file, ENVIRON))
    assert (listing.name, listing.mount, listing.setting) == ("writer", "/finch/v2", "listings[0]")
    assert listing.paths == PathSettings(invoke="/turns")
    assert (listing.on_crash, listing.capabilities, listing.max_running_turns) == ("fail", "Writes.", 32)
    assert (listing.backend_type, listing.backend_options) == ("python", {"target": "agent:run"})
    current, retiring = listing.revisions.values()
    assert listing.current is current
    assert (current.service_version_id, retiring.state) == ("v1", "retiring")


def test_each_secret_signs_its_own_direction_and_one_alone_both(file: Path) -> None:
    [listing] = load_all(file, ENVIRON).listings
    current, retiring = listing.revisions.values()
    assert current.request_key.sign(b"x") == SigningKey(REQUEST).sign(b"x")
    assert current.callback_key.sign(b"x") == SigningKey(CALLBACK).sign(b"x")
    assert retiring.callback_key.sign(b"x") == SigningKey(REQUEST).sign(b"x")


def test_a_text_secret_is_used_as_its_own_bytes(file: Path) -> None:
    text = file.read_text().replace("mount =", 'wire_protocol = "agenton_v0"\nmount =')
    file.write_text(text)
    [listing] = load_all(file, ENVIRON).listings
    assert listing.current.request_key.sign(b"x") == SigningKey(ENVIRON["REQUEST"].encode()).sign(b"x")


def test_problems_of_the_file_and_of_the_secrets_come_together_in_the_files_order(file: Path) -> None:
    file.write_text(f"oops = 1\n{CONFIG}more = 1\n")
    environ = {"REQUEST": "plantedsecret", "CALLBACK": shown(CALLBACK)}
    with pytest.raises(ConfigError) as caught:
        load_all(file, environ)
    assert [(problem.setting, problem.line) for problem in caught.value.problems] == [
        ("oops", 1),
        ("listings[0].credentials[0].request_secret", 13),
        ("listings[0].credentials[1].request_secret", 19),
        ("listings[0].credentials[1].more", 21),
    ]
    assert "plantedsecret" not in str(caught.value)


def test_an_unusable_secret_alone_stops_the_listings(file: Path) -> None:
    config = load(file, {"REQUEST": "plantedsecret", "CALLBACK": shown(CALLBACK)})
    with pytest.raises(ConfigError) as caught:
        build_listings(config)
    assert [problem.line for problem in caught.value.problems] == [12, 18]


def test_a_listing_after_one_that_is_not_served_keeps_its_own_name(file: Path) -> None:
    file.write_text('[[listings]]\nfamily = "direct_api_v1"\n' + CONFIG)
    with pytest.raises(ConfigError) as caught:
        load_all(file, {"REQUEST": shown(REQUEST), "CALLBACK": "short"})
    assert [problem.setting for problem in caught.value.problems] == [
        "listings[0].family",
        "listings[1].credentials[0].callback_secret",
    ]


def test_what_is_odd_about_a_secret_is_a_warning_with_its_line(file: Path) -> None:
    loaded = load_all(file, {"REQUEST": f" {shown(REQUEST)}=", "CALLBACK": shown(CALLBACK)})
    said = [warning for warning in loaded.config.warnings if "the secret it refers to" in warning]
    assert len(said) == 4
    assert said[0].startswith("listings[0].credentials[0].request_secret (line 12): ")
    assert shown(REQUEST) not in "".join(loaded.config.warnings)


def test_a_wrong_file_still_yields_what_could_be_read(file: Path) -> None:
    file.write_text(CONFIG + "more = 1\n")
    loaded = read_all(file, ENVIRON)
    assert [problem.setting for problem in loaded.problems] == ["listings[0].credentials[1].more"]
    assert [listing.name for listing in loaded.listings] == ["writer"]


def test_no_secret_is_in_a_listings_own_text(file: Path) -> None:
    text = repr(load_all(file, ENVIRON))
    assert shown(REQUEST) not in text
    assert shown(CALLBACK) not in text
