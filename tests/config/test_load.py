"""A whole configuration: defaults, overrides, origins, and every problem at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from finch_gateway.config import Config, ServerSettings, StoreSettings, load, read
from finch_gateway.errors import ConfigError

Write = Callable[[str], Path]
PLANTED = "plantedsecret"
KEY_ID = "finch.agenton.00000000-0000-4000-8000-000000000000"
OTHER_KEY_ID = "finch.agenton.11111111-0000-4000-8000-000000000000"

CREDENTIAL = f"""
[[listings.credentials]]
key_id = "{OTHER_KEY_ID}"
request_secret = "env:REQUEST_SECRET"
callback_secret = "env:CALLBACK_SECRET"
"""
SECOND = (
    """
[[listings]]
name = "second"
mount = "/second"
backend = { type = "python" }
"""
    + CREDENTIAL
)


def test_what_a_file_leaves_out_has_its_default(write: Write, good: str, environ: dict[str, str]) -> None:
    file = write(good.replace('[server]\nport = 8080\n\n[store]\nurl = "sqlite:///finch.db"\n', ""))
    config = load(file, environ)
    assert config.server == ServerSettings()
    assert config.store == StoreSettings(url=f"sqlite:///{file.parent}/finch.db")
    [listing] = config.listings
    assert (listing.family, listing.wire_protocol, listing.modes) == (
        "agenton_v2",
        "finch_v2",
        ("conversation_turn", "task"),
    )
    assert (listing.default_deadline_s, listing.max_deadline_s) == (600, 86400)
    assert (listing.max_running_turns, listing.max_output_bytes, listing.on_crash) == (32, 4194304, "rerun")
    assert (listing.paths.health, listing.paths.invoke, listing.capabilities) == ("/health", "/invoke", "")
    assert (listing.backend.type, listing.backend.options) == ("python", {"target": "agent:run"})
    assert listing.credentials[0].state == "current"
    assert config.warnings == ()


def test_the_file_is_the_named_one_then_the_variables_then_the_one_here(
    write: Write, good: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = write(good)
    for name, port in (("named.toml", 1), ("variable.toml", 2)):
        (tmp_path / name).write_text(good.replace("8080", str(port)))
    variable = environ | {"FINCH_GATEWAY_CONFIG": str(tmp_path / "variable.toml")}
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path / "named.toml", variable).server.port == 1
    assert load(None, variable).server.port == 2
    assert load(None, environ).server.port == 8080
    assert load(None, environ | {"FINCH_GATEWAY_CONFIG": ""}).folder == here.parent


def test_paths_are_read_from_the_files_folder(
    write: Write, good: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(good.replace("finch.db", "data/finch.db").replace("env:REQUEST_SECRET", "file:keys/request"))
    (file.parent / "data").mkdir()
    (file.parent / "keys").mkdir()
    (file.parent / "keys" / "request").write_text("from-file\n")
    monkeypatch.chdir("/")
    config = load(Path(*file.parts[1:]), environ)
    assert config.folder == file.parent
    assert config.store.sqlite_path == file.parent / "data" / "finch.db"
    assert config.listings[0].credentials[0].request_secret == "from-file"


def test_variables_override_scalars_and_are_named_as_the_origin(
    write: Write, good: str, environ: dict[str, str]
) -> None:
    overrides = {
        "FINCH_GATEWAY_SERVER__HOST": "::1",
        "FINCH_GATEWAY_SERVER__PORT": "0",
        "FINCH_GATEWAY_SERVER__GRACE_S": "2.5",
        "FINCH_GATEWAY_SERVER__LOG_LEVEL": "debug",
        "FINCH_GATEWAY_STORE__NAMESPACE": "other",
        "FINCH_GATEWAY_STORE__URL": f"redis://user:{PLANTED}@cache:6379/2",
    }
    config = load(write(good), environ | overrides)
    assert (config.server.host, config.server.port, config.server.grace_s) == ("::1", 0, 2.5)
    assert (config.server.log_level, config.store.namespace) == ("debug", "other")
    assert config.store.url == overrides["FINCH_GATEWAY_STORE__URL"]
    assert config.store.safe_url == "redis://cache:6379/2"
    assert config.origin("server.port") == "env FINCH_GATEWAY_SERVER__PORT"
    assert config.origin("listings[0].name") == "finch.toml line 8"
    assert config.origin("store.lease_s") == "default"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FINCH_GATEWAY_SERVER__PORT", "eighty", "whole number from 0 to 65535"),
        ("FINCH_GATEWAY_SERVER__PORT", "1_0", "whole number"),
        ("FINCH_GATEWAY_SERVER__PORT", "", "whole number"),
        ("FINCH_GATEWAY_SERVER__GRACE_S", "nan", "number from 0 to 3600"),
        ("FINCH_GATEWAY_STORE__URL", f"mysql://:{PLANTED}@h", "sqlite:///FILE"),
        ("FINCH_GATEWAY_SERVER__PROT", "1", "did you mean FINCH_GATEWAY_SERVER__PORT?"),
        ("FINCH_GATEWAY_LISTINGS__NAME", "x", "is not a setting"),
        ("FINCH_GATEWAY_server__port", "1", "is not a setting"),
    ],
)
def test_a_wrong_override_is_a_problem_under_the_variables_name(
    variable: str, value: str, said: str, write: Write, good: str, environ: dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(good), environ | {variable: value})
    [problem] = caught.value.problems
    assert problem.setting == variable
    assert said in problem.message
    assert PLANTED not in str(problem)


# Each row: what is replaced, by what, and then the setting, the line and the remedy of the one problem it makes.
WRONG = [
    ("port = 8080", "port = -1", "server.port", 2, "whole number from 0 to 65535"),
    ("port = 8080", "port = 65536", "server.port", 2, "whole number from 0 to 65535"),
    ("port = 8080", "port = true", "server.port", 2, "whole number from 0 to 65535"),
    ("port = 8080", 'port = "8080"', "server.port", 2, "whole number from 0 to 65535"),
    ("port = 8080", "port = 80.0", "server.port", 2, "whole number from 0 to 65535"),
    ("port = 8080", 'host = ""', "server.host", 2, "must be a host name"),
    ("port = 8080", "host = 7", "server.host", 2, "must be a host name"),
    ("port = 8080", 'public_prefix = "/p/"', "server.public_prefix", 2, "does not end with one"),
    ("port = 8080", "max_body_bytes = 0", "server.max_body_bytes", 2, "from 1024 to"),
    ("port = 8080", "body_timeout_s = 0", "server.body_timeout_s", 2, "from 0.1 to 3600"),
    ("port = 8080", "body_timeout_s = nan", "server.body_timeout_s", 2, "from 0.1 to 3600"),
    ("port = 8080", "max_unverified_bytes = 2000", "server.max_unverified_bytes", 2, "smaller than max_body_bytes"),
    ("port = 8080", "grace_s = inf", "server.grace_s", 2, "from 0 to 3600"),
    ("port = 8080", "grace_s = false", "server.grace_s", 2, "from 0 to 3600"),
    ("port = 8080", 'log_level = "loud"', "server.log_level", 2, '"debug" or "info"'),
    ("port = 8080", "prot = 8080", "server.prot", 2, "did you mean port?"),
    ("port = 8080", "zzz = 8080", "server.zzz", 2, "remove it"),
    ("[server]\nport = 8080", "server = 8080", "server", 1, "must be a table"),
    ("[server]\nport = 8080", "[sever]\n", "sever", 1, "did you mean server?"),
    ("sqlite:///finch.db", "sqlite://finch.db", "store.url", 5, "sqlite:///FILE"),
    ("sqlite:///finch.db", "sqlite:///", "store.url", 5, "must name a database file"),
    ("sqlite:///finch.db", "sqlite:///:memory:", "store.url", 5, "must name a database file"),
    ("sqlite:///finch.db", "sqlite:///none/finch.db", "store.url", 5, "create the folder"),
    ("sqlite:///finch.db", "sqlite:////", "store.url", 5, "must name a database file"),
    ("sqlite:///finch.db", "sqlite:////tmp", "store.url", 5, "names a folder"),
    ("sqlite:///finch.db", f"redis://:{PLANTED}@h:6379/0", "store.url", 5, "write env:NAME"),
    ("sqlite:///finch.db", f"rediss://u:{PLANTED}@h", "store.url", 5, "write env:NAME"),
    ("sqlite:///finch.db", f"redis://h:6379/0?password={PLANTED}", "store.url", 5, "write env:NAME"),
    ("sqlite:///finch.db", f"redis://:{PLANTED}#x@h", "store.url", 5, "sqlite:///FILE"),
    ("sqlite:///finch.db", f"redis://:{PLANTED}/x@h:6379", "store.url", 5, "sqlite:///FILE"),
    ("sqlite:///finch.db", "redis://h:99999", "store.url", 5, "sqlite:///FILE"),
    ("sqlite:///finch.db", "redis://[h", "store.url", 5, "sqlite:///FILE"),
    ("sqlite:///finch.db", "env:NOT_SET", "store.url", 5, "NOT_SET is not set"),
    ('url = "sqlite:///finch.db"', "url = 1", "store.url", 5, "sqlite:///FILE"),
    ('url = "sqlite:///finch.db"', 'namespace = "a b"', "store.namespace", 5, "1 to 64 letters"),
    ('url = "sqlite:///finch.db"', "retention_days = 0", "store.retention_days", 5, "from 0.01 to 3650"),
    ('url = "sqlite:///finch.db"', "lease_s = 2", "store.lease_s", 5, "from 3 to 3600"),
    ('name = "writer"', "", "listings[0].name", 7, "is missing"),
    ('name = "writer"', 'name = "a b"', "listings[0].name", 8, "1 to 64 letters"),
    ('mount = "/finch/v2"', "", "listings[0].mount", 7, "is missing"),
    *(
        ('mount = "/finch/v2"', f'mount = "{mount}"', "listings[0].mount", 9, "must be a path")
        for mount in ("", "/", "finch", "/f/", "//f", "/f//g", "/f?", "/f#", "/%66", "/a b", "/ü", "/a/../b", "/.")
    ),
    ('"/finch/v2"', '"/f"\nfamily = "direct_api_v1"', "listings[0].family", 10, "this version does not serve"),
    ('"/finch/v2"', '"/f"\nfamily = "x"', "listings[0].family", 10, '"agenton_v2" or'),
    ('"/finch/v2"', '"/f"\nwire_protocol = "v3"', "listings[0].wire_protocol", 10, '"finch_v2" or "agenton_v0"'),
    ('"/finch/v2"', '"/f"\nmodes = []', "listings[0].modes", 10, "must list what the agent serves"),
    ('"/finch/v2"', '"/f"\nmodes = "task"', "listings[0].modes", 10, "must list what the agent serves"),
    ('"/finch/v2"', '"/f"\nmodes = ["task", "task"]', "listings[0].modes", 10, "must list what the agent serves"),
    (
        '"/finch/v2"',
        '"/f"\nmodes = [\n "conversation_turn",\n "generation" ]',
        "listings[0].modes[1]",
        12,
        "does not serve generations",
    ),
    ('"/finch/v2"', '"/f"\npaths = { health = "health" }', "listings[0].paths.health", 10, "must be a path such as"),
    ('"/finch/v2"', '"/f"\npaths = { invoke = "/health" }', "listings[0].paths.invoke", 10, "must differ"),
    ('"/finch/v2"', '"/f"\npaths.task = "/t"', "listings[0].paths.task", 10, "{merchant_task_id}"),
    ('"/finch/v2"', '"/f"\npaths = 1', "listings[0].paths", 10, "must be a table"),
    ('"/finch/v2"', '"/f"\ndefault_deadline_s = 0', "listings[0].default_deadline_s", 10, "from 0.1 to 2592000"),
    (
        '"/finch/v2"',
        '"/f"\nmax_deadline_s = 60',
        "listings[0].default_deadline_s",
        7,
        "not be larger than max_deadline_s",
    ),
    ('"/finch/v2"', '"/f"\nmax_deadline_s = 1e9', "listings[0].max_deadline_s", 10, "from 0.1 to 2592000"),
    ('"/finch/v2"', '"/f"\nmax_running_turns = 0', "listings[0].max_running_turns", 10, "from 1 to 10000"),
    ('"/finch/v2"', '"/f"\nmax_output_bytes = 1', "listings[0].max_output_bytes", 10, "from 256 to"),
    ('"/finch/v2"', '"/f"\non_crash = "again"', "listings[0].on_crash", 10, '"rerun" or "fail"'),
    ('"/finch/v2"', '"/f"\ncapabilities = 1', "listings[0].capabilities", 10, "up to 10000 characters"),
    ('"/finch/v2"', '"/f"\npaths.cancel = "/tasks/{merchant_task_id}"', "listings[0].paths.cancel", 10, "differ"),
    ('"/finch/v2"', '"/f"\nmoddes = 1', "listings[0].moddes", 10, "did you mean modes?"),
    (
        '[listings.backend]\ntype = "python"\ntarget = "agent:run"',
        "",
        "listings[0].backend",
        7,
        "add [listings.backend]",
    ),
    (
        '[listings.backend]\ntype = "python"\ntarget = "agent:run"',
        "backend = 1",
        "listings[0].backend",
        11,
        "must be a table",
    ),
    ('type = "python"', "", "listings[0].backend.type", 11, "is missing"),
    ('type = "python"', "type = 1", "listings[0].backend.type", 12, "a backend's name"),
    ('target = "agent:run"', 'api_key = "env:NOT_SET"', "listings[0].backend.api_key", 13, "NOT_SET is not set"),
    (
        'target = "agent:run"',
        'headers = { list = [\n  "x",\n  "env:NOT_SET" ] }',
        "listings[0].backend.headers.list[1]",
        15,
        "NOT_SET is not set",
    ),
    (f'"{KEY_ID}"', '"a b"', "listings[0].credentials[0].key_id", 16, "visible ASCII"),
    (f'"{KEY_ID}"', '"env:KEY"', "listings[0].credentials[0].key_id", 16, "write the key id itself"),
    (f'"{KEY_ID}"', f'"{PLANTED * 3}abcd"', "listings[0].credentials[0].key_id", 16, "looks like a secret"),
    (f'key_id = "{KEY_ID}"', "", "listings[0].credentials[0].key_id", 15, "is missing"),
    ('"env:REQUEST_SECRET"', f'"{PLANTED}"', "listings[0].credentials[0].request_secret", 17, "env:NAME or file:PATH"),
    ('"env:REQUEST_SECRET"', "7", "listings[0].credentials[0].request_secret", 17, "env:NAME or file:PATH"),
    ('"env:REQUEST_SECRET"', '""', "listings[0].credentials[0].request_secret", 17, "env:NAME or file:PATH"),
    (
        '"env:CALLBACK_SECRET"',
        f'"{PLANTED}"',
        "listings[0].credentials[0].callback_secret",
        18,
        "env:NAME or file:PATH",
    ),
    ('"env:REQUEST_SECRET"', '"env:NOT_SET"', "listings[0].credentials[0].request_secret", 17, "set it, in env_file"),
    ('"env:REQUEST_SECRET"', '"file:none"', "listings[0].credentials[0].request_secret", 17, "check its name"),
    ('request_secret = "env:REQUEST_SECRET"', "", "listings[0].credentials[0].request_secret", 15, "is missing"),
    (
        '"env:CALLBACK_SECRET"',
        '"env:CALLBACK_SECRET"\nstate = "old"',
        "listings[0].credentials[0].state",
        19,
        '"current"',
    ),
    (
        '"env:CALLBACK_SECRET"',
        '"env:CALLBACK_SECRET"\nstate = "retiring"',
        "listings[0].credentials",
        15,
        "exactly one",
    ),
    (
        '"env:CALLBACK_SECRET"',
        '"env:CALLBACK_SECRET"\nservice_version_id = ""',
        "listings[0].credentials[0].service_version_id",
        19,
        "visible ASCII",
    ),
    (
        '"env:CALLBACK_SECRET"',
        '"env:CALLBACK_SECRET"\nstat = "x"',
        "listings[0].credentials[0].stat",
        19,
        "mean state?",
    ),
    ("[[listings.credentials]]", "[listings.credentials]", "listings[0].credentials", 15, "[[listings.credentials]]"),
]


@pytest.mark.parametrize(("old", "new", "setting", "line", "remedy"), WRONG)
def test_a_wrong_setting_is_named_with_its_line_and_remedy(
    old: str, new: str, setting: str, line: int, remedy: str, write: Write, good: str, environ: dict[str, str]
) -> None:
    assert good.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        load(write(good.replace(old, new)), environ)
    [problem] = caught.value.problems
    assert (problem.setting, problem.line) == (setting, line)
    assert remedy in problem.message
    assert PLANTED not in str(problem)


@pytest.mark.parametrize(
    ("more", "setting", "remedy"),
    [
        (SECOND.replace('"second"', '"writer"'), "listings[1].name", "make it unique"),
        (SECOND.replace(OTHER_KEY_ID, KEY_ID), "listings[1].credentials[0].key_id", "make it unique"),
        (SECOND.replace("/second", "/finch/v2"), "listings[1].mount", "give each its own"),
        (SECOND.replace("/second", "/finch"), "listings[1].mount", "give each its own"),
        (SECOND.replace("/second", "/finch/v2/more"), "listings[1].mount", "give each its own"),
        (CREDENTIAL, "listings[0].credentials", '2 of them are in state "current"'),
        (CREDENTIAL.replace(OTHER_KEY_ID, KEY_ID) + 'state = "revoked"', "listings[0].credentials[1].key_id", "unique"),
    ],
)
def test_what_must_be_unique_is(
    more: str, setting: str, remedy: str, write: Write, good: str, environ: dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(good + more), environ)
    [problem] = caught.value.problems
    assert problem.setting == setting
    assert remedy in problem.message


@pytest.mark.parametrize("mount", ["/finch/v2x", "/Finch/v2", "/finch/v", "/f-1/~a/b.c"])
def test_mounts_that_only_share_letters_stand_side_by_side(
    mount: str, write: Write, good: str, environ: dict[str, str]
) -> None:
    config = load(write(good + SECOND.replace("/second", mount)), environ)
    assert [listing.mount for listing in config.listings] == ["/finch/v2", mount]


@pytest.mark.parametrize("text", ["", "listings = []", "listings = 1", "[listings]\nname = 'x'", "listings = [1]"])
def test_a_file_without_a_listing_says_how_to_write_one(text: str, write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(text), {})
    assert all(problem.setting.startswith("listings") for problem in caught.value.problems)
    assert "[[listings]]" in str(caught.value)


def test_all_problems_are_reported_together_in_the_files_order(
    write: Write, good: str, environ: dict[str, str]
) -> None:
    text = good.replace("8080", "true").replace("/finch/v2", "x").replace("target =", "token = 'env:NO'\ntarget =")
    with pytest.raises(ConfigError) as caught:
        load(write(f"oops = 1\n{text}{SECOND}other = 1\n"), environ | {"FINCH_GATEWAY_STORE__LEASE_S": "0"})
    assert [(problem.setting, problem.line) for problem in caught.value.problems] == [
        ("oops", 1),
        ("server.port", 3),
        ("listings[0].mount", 10),
        ("listings[0].backend.token", 14),
        ("listings[1].credentials[0].other", 31),
        ("FINCH_GATEWAY_STORE__LEASE_S", None),
    ]


def test_a_password_in_the_file_is_refused_even_under_an_override(
    write: Write, good: str, environ: dict[str, str]
) -> None:
    file = write(good.replace("sqlite:///finch.db", f"redis://:{PLANTED}@h"))
    with pytest.raises(ConfigError) as caught:
        load(file, environ | {"FINCH_GATEWAY_STORE__URL": "redis://h"})
    assert [problem.setting for problem in caught.value.problems] == ["store.url"]


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        (KEY_ID, "eav_0123456789abcdef", "does not look like finch.agenton.<uuid>"),
        ('callback_secret = "env:CALLBACK_SECRET"', "", "the request secret serves for both"),
        ('target = "agent:run"', f'api_key = "{PLANTED}"', "looks like a secret in the file"),
        ('target = "agent:run"', f'headers = {{ Authorization = "{PLANTED}" }}', "looks like a secret in the file"),
    ],
)
def test_what_is_odd_but_harmless_is_a_warning(
    old: str, new: str, warning: str, write: Write, good: str, environ: dict[str, str]
) -> None:
    [said] = load(write(good.replace(old, new)), environ).warnings
    assert warning in said
    assert "(line " in said
    assert PLANTED not in said


def test_a_v0_key_id_is_measured_by_its_own_form(write: Write, good: str, environ: dict[str, str]) -> None:
    v0 = good.replace('name = "writer"', 'name = "writer"\nwire_protocol = "agenton_v0"')
    assert "eav_<16 hex digits>" in load(write(v0), environ).warnings[0]
    assert load(write(v0.replace(KEY_ID, "eav_0123456789abcdef")), environ).warnings == ()


def test_references_in_a_backends_options_are_resolved_however_deep(
    write: Write, good: str, environ: dict[str, str]
) -> None:
    options = (
        'target = "x"\nheaders = { a = ["env:CALLBACK_SECRET", 1], b = { c = "file:finch.toml" } }\nwhen = 2026-01-01'
    )
    file = write(good.replace('target = "agent:run"', options))
    resolved = load(file, environ).listings[0].backend.options
    assert resolved["headers"] == {
        "a": [environ["CALLBACK_SECRET"], 1],
        "b": {"c": file.read_text().removesuffix("\n")},
    }


def whole(config: Config) -> str:
    return repr(config) + repr(config.shown) + repr(config.warnings)


def test_no_secret_is_in_what_the_configuration_shows_of_itself(
    write: Write, good: str, environ: dict[str, str]
) -> None:
    options = (
        f'url = "https://u:{PLANTED}@h/x?key={PLANTED}"\napi_key = "{PLANTED}"\nlist = ["env:P"]\nother = "{PLANTED}"'
    )
    text = good.replace('target = "agent:run"', options).replace("sqlite:///finch.db", "env:STORE_URL")
    variables = environ | {"P": PLANTED, "REQUEST_SECRET": PLANTED, "STORE_URL": f"redis://:{PLANTED}@h:1/0"}
    config = load(write(text), variables)
    assert config.store.url == variables["STORE_URL"]
    assert PLANTED not in whole(config)
    assert "env:STORE_URL" in whole(config)
    assert "https://h/x" in whole(config)


def test_what_could_be_read_of_a_wrong_file_is_there_beside_its_problems(
    write: Write, good: str, environ: dict[str, str]
) -> None:
    reading = read(write(good.replace("8080", '"x"')), environ)
    assert [problem.setting for problem in reading.problems] == ["server.port"]
    assert reading.config.listings[0].name == "writer"
    assert reading.config.line("listings[0].credentials[0].state") == 15
    assert reading.config.line("store") == 4
    assert reading.config.line("nothing") is None
