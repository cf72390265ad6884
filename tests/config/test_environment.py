"""Variables, `env_file`, and what references refer to."""

from __future__ import annotations

import contextlib
import string
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finch_gateway.config import load
from finch_gateway.config.environment import Environment, read_env_file, shown_reference
from finch_gateway.config.rules import Wrong
from finch_gateway.errors import ConfigError

PLANTED = "plantedsecret"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=value", "value"),
        ("KEY = value ", "value"),
        ("export KEY=value", "value"),
        ("  export\tKEY=value", "value"),
        ("KEY=", ""),
        ("KEY=a=b==", "a=b=="),
        ("KEY=a b", "a b"),
        ("KEY=value # a comment", "value"),
        ("KEY=value#no-comment", "value#no-comment"),
        ("KEY=# all comment", ""),
        ("KEY='a # \"b\" \\n $X'", 'a # "b" \\n $X'),
        ("KEY='a' # a comment", "a"),
        ('KEY="a # b"', "a # b"),
        ('KEY="a\\n\\"b\\" \\\\ \\$X \\q"', 'a\n"b" \\ $X \\q'),
        ('KEY="" ', ""),
        ("KEY=$HOME", "$HOME"),
        ("KEY=схема", "схема"),
        ("KEY=value\r", "value"),
        ("KEY=first\nKEY=second", "second"),
        ("# comment\n\n   # another\nKEY=value", "value"),
        ("\ufeffKEY=value", "value"),
    ],
)
def test_an_env_file_line_means_what_a_shell_would_read(line: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(line + "\n", encoding="utf-8", newline="")
    assert read_env_file(file) == {"KEY": value}


@pytest.mark.parametrize(
    "line", [PLANTED, "1KEY=x", "KEY x=y", "=x", f"KEY='{PLANTED}", f'KEY="{PLANTED}', 'KEY="a" b']
)
def test_a_line_that_means_nothing_is_named_by_number_and_never_quoted(line: str, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(f"A=1\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_env_file(file)
    [problem] = caught.value.problems
    assert problem.line == 2
    assert PLANTED not in str(problem)


@given(st.binary(max_size=120))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_variables_or_a_config_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ".env"
        file.write_bytes(content)
        with contextlib.suppress(ConfigError):
            assert all("\0" not in value for value in read_env_file(file).values())


@given(st.text(string.printable.replace("\n", "").replace("\r", "").replace("'", ""), max_size=30))
def test_single_quotes_keep_any_text(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ".env"
        file.write_text(f"KEY='{text}'\n", encoding="utf-8", newline="")
        assert read_env_file(file) == {"KEY": text}


def environment(folder: Path, **variables: str) -> Environment:
    return Environment(variables, folder)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"secret", "secret"),
        (b"secret\n", "secret"),
        (b"secret\r\n", "secret"),
        (b"secret\n\n", "secret\n"),
        (b" secret ", " secret "),
        (b"secret\r", "secret\r"),
    ],
)
def test_a_file_reference_loses_exactly_one_trailing_newline(content: bytes, value: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(content)
    assert environment(tmp_path).resolve("file:secret") == value
    assert environment(tmp_path).resolve(f"file:{tmp_path / 'secret'}") == value


def test_a_reference_that_leads_nowhere_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    reasons = {
        "env:NOT_SET": "the variable NOT_SET is not set",
        "env:EMPTY": "the variable EMPTY is empty",
        "env:": "must name a variable",
        "env:A-B": "must name a variable",
        "file:": "must name a file",
        "file:none": "does not exist",
        "file:.": "is a folder",
        "file:loop": "cannot be read",
        "file:empty": "is empty",
        "file:binary": "is not UTF-8",
        "file:large": "is larger than",
        "file:a\0b": "cannot be read",
    }
    for reference, reason in reasons.items():
        with pytest.raises(Wrong, match=reason):
            environment(tmp_path, EMPTY="").resolve(reference)


@pytest.mark.parametrize("pasted", ["AbC0_" * 8, "abc-def", "x y", "plantedsecret"])
def test_a_secret_pasted_behind_the_colon_is_not_repeated(pasted: str, tmp_path: Path) -> None:
    for kind in ("env", "file"):
        with pytest.raises(Wrong) as caught:
            environment(tmp_path).resolve(f"{kind}:{pasted}")
        assert pasted not in str(caught.value)
    assert pasted not in shown_reference(f"env:{pasted}")


def test_the_env_file_adds_missing_variables_and_replaces_none(
    write: Callable[[str], Path], good: str, environ: dict[str, str]
) -> None:
    file = write('env_file = "more.env"\n' + good)
    (file.parent / "more.env").write_text("REQUEST_SECRET=theirs\nCALLBACK_SECRET=from-file\nAGENT_KEY=k\n")
    del environ["CALLBACK_SECRET"]
    config = load(file, environ)
    [credential] = config.listings[0].credentials
    assert credential.request_secret == environ["REQUEST_SECRET"]
    assert credential.callback_secret == "from-file"
    assert config.variables == {"CALLBACK_SECRET": "from-file", "AGENT_KEY": "k"}


def test_the_env_file_may_override_settings_and_the_process_overrides_the_env_file(
    write: Callable[[str], Path], good: str, environ: dict[str, str]
) -> None:
    file = write('env_file = "more.env"\n' + good)
    (file.parent / "more.env").write_text("FINCH_GATEWAY_SERVER__PORT=9001\nFINCH_GATEWAY_STORE__LEASE_S=20\n")
    config = load(file, environ | {"FINCH_GATEWAY_SERVER__PORT": "9002"})
    assert (config.server.port, config.store.lease_s) == (9002, 20)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ('"none.env"', None, "does not exist"),
        ('"."', None, "is a folder"),
        ('"x.env"', "A=1\nplantedsecret\n", "line 2 is not of the form KEY=VALUE"),
        ("7", None, "must be a file's name"),
        ('""', None, "must be a file's name"),
    ],
)
def test_an_env_file_that_cannot_be_used_is_a_problem_of_that_setting(
    name: str, content: str | None, said: str, write: Callable[[str], Path], good: str, environ: dict[str, str]
) -> None:
    file = write(f"env_file = {name}\n{good}")
    if content is not None:
        (file.parent / "x.env").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(file, environ)
    [problem] = caught.value.problems
    assert (problem.setting, problem.line) == ("env_file", 1)
    assert said in problem.message
    assert "plantedsecret" not in problem.message
