"""Where in the file things are, and what happens to a file that is none."""

from __future__ import annotations

import json
import os
import string
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finch_gateway.config import load
from finch_gateway.config.document import MAX_FILE_BYTES, Place, locate, read_document
from finch_gateway.errors import ConfigError

LAYOUT = '''\
# a comment = 1
title = "one"   # [not.a.table]
"quoted key" = 'a ] b = c'
dotted . "in.ner" . last = 2
text = """
[no.table]
k = "v" """
raw = \'\'\'
x = 1\'\'\'\'

[server] # comment
port = 1
list = [ 1,
  2, # two ]
  [ "a",
    "b" ],
  { k = 1, deep = [
      7,
      8 ] },
]

[[listings]]
name = "a"
[listings.backend]
type = "x"
[[listings.credentials]]
key_id = "k0"
[[listings.credentials]]

key_id = "k1"
[[listings]]
name = "b"
credentials = [
  { key_id = "k2" },
  { key_id = "k3", state = "current" },
]
when = 1979-05-27 07:32:00
'''

LINES: list[tuple[Place, int]] = [
    (("title",), 2),
    (("quoted key",), 3),
    (("dotted",), 4),
    (("dotted", "in.ner", "last"), 4),
    (("text",), 5),
    (("raw",), 8),
    (("server",), 11),
    (("server", "port"), 12),
    (("server", "list"), 13),
    (("server", "list", 0), 13),
    (("server", "list", 1), 14),
    (("server", "list", 2), 15),
    (("server", "list", 2, 1), 16),
    (("server", "list", 3, "k"), 17),
    (("server", "list", 3, "deep", 0), 18),
    (("server", "list", 3, "deep", 1), 19),
    (("listings", 0), 22),
    (("listings", 0, "name"), 23),
    (("listings", 0, "backend"), 24),
    (("listings", 0, "backend", "type"), 25),
    (("listings", 0, "credentials", 0), 26),
    (("listings", 0, "credentials", 0, "key_id"), 27),
    (("listings", 0, "credentials", 1, "key_id"), 30),
    (("listings", 1), 31),
    (("listings", 1, "name"), 32),
    (("listings", 1, "credentials"), 33),
    (("listings", 1, "credentials", 0, "key_id"), 34),
    (("listings", 1, "credentials", 1, "state"), 35),
    (("listings", 1, "when"), 37),
]


@pytest.mark.parametrize(("place", "line"), LINES, ids=str)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_every_key_table_and_element_has_the_line_it_begins_on(place: Place, line: int, ending: str) -> None:
    assert locate(LAYOUT.replace("\n", ending))[place] == line


def places(value: object, at: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*at, name)
            yield from places(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*at, index)
            yield from places(inner, (*at, index))


def test_the_sample_layout_leaves_no_place_without_a_line() -> None:
    assert set(locate(LAYOUT)) == set(places(tomllib.loads(LAYOUT)))


KEYS = st.text(string.ascii_letters + ".[]#=\"' é", min_size=1, max_size=6)
SCALARS = st.one_of(
    st.integers(-(10**6), 10**6),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False).map(float),
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=8),
)


def in_line(value: object) -> str:
    if isinstance(value, list):
        return "[" + ",\n".join(in_line(element) for element in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {in_line(inner)}" for name, inner in value.items()) + "}"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_valid_document_is_located_whole(tables: list[dict[str, object]]) -> None:
    lines, expected = [], {}
    for index, table in enumerate(tables):
        expected[("t", index)] = sum(text.count("\n") + 1 for text in lines) + 1
        lines.append("[[t]]")
        for name, value in table.items():
            expected[("t", index, name)] = sum(text.count("\n") + 1 for text in lines) + 1
            lines.append(f"{json.dumps(name, ensure_ascii=False)} = {in_line(value)}")
    text = "\n".join(lines)
    located = locate(text)
    assert set(located) == set(places(tomllib.loads(text)))
    assert {place: located[place] for place in expected} == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = \n", 2),
        ("a = 1\na = 2\n", 2),
        ("[a]\nx = 1\n\n[a]\n", 4),
        ('a = "plantedsecret\n', 1),
        ("a = plantedsecret\n", 1),
        ("plantedsecret\n", 1),
        ('a = """\nplantedsecret\n\n', 2),
        ("a = 'x'\n[[t]]\nb = { c = 1,\n}\n", 3),
        ("a = 1\n\x00\n", 2),
        ("a = 1\rb = 2\n", 1),
        ("plantedsecret = 1\nplantedsecret = 2\n", 2),
        ("a = 99-99\n", 1),
        (f"a = {'9' * 5000}\n", 1),
        ("d = 2026-13-45\n", 1),
    ],
)
def test_a_syntax_error_is_one_problem_with_its_line_and_nothing_of_the_text(
    text: str, line: int, write: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_document(write(text))
    [problem] = caught.value.problems
    assert problem.line == line
    assert "not valid TOML" in str(problem)
    assert "plantedsecret" not in str(problem)


def test_a_byte_that_is_no_utf8_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "finch.toml"
    file.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(ConfigError) as caught:
        read_document(file)
    assert caught.value.problems[0].line == 2


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "finch.toml"
    file.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_document(file).values == {"a": 1}


def test_nesting_without_end_is_one_problem(write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_document(write("a = " + "[" * 5000 + "]" * 5000))
    assert "nested too deeply" in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_problem_with_a_remedy(tmp_path: Path) -> None:
    loop, pipe, large = tmp_path / "loop", tmp_path / "pipe", tmp_path / "large"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    reasons = {
        tmp_path / "none.toml": "does not exist",
        tmp_path: "is a folder",
        loop: "cannot be read",
        pipe: "is not a regular file",
        large: "is larger than",
        Path("a\0b"): "cannot be read",
    }
    for file, reason in reasons.items():
        with pytest.raises(ConfigError) as caught:
            read_document(file)
        assert reason in str(caught.value)
        assert "finch-gateway init" in str(caught.value)


def test_a_list_that_fills_the_largest_file_is_located(write: Callable[[str], Path]) -> None:
    count = MAX_FILE_BYTES // 8 - 2
    located = read_document(write("a = [\n" + "  'xx',\n" * count + "]\n")).lines
    assert located[("a", count - 1)] == count + 1


SIGNS = ["[", "]", "[[listings]]\n", "[server]\n", "[store]\n", "=", "\n", '"', "'''", '"""', "#", "{", "}", ",", "."]
WORDS = [" ", "name", "port", "url", "credentials", "backend", "modes", "true", "1", "1e999", "nan", "env:", "\\", "é"]
PIECES = st.sampled_from([*SIGNS, *WORDS])


@given(st.one_of(st.binary(max_size=200), st.lists(PIECES, max_size=60).map("".join).map(str.encode)))
@settings(max_examples=400, deadline=None)
def test_no_bytes_whatever_yield_anything_but_a_config_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "finch.toml"
        file.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load(file, {})
        assert caught.value.problems


SETTINGS = """env_file server store listings host port url namespace lease_s name mount family wire_protocol modes paths
health invoke backend type target credentials key_id request_secret callback_secret state capabilities on_crash x"""
NAMES = st.sampled_from(SETTINGS.split())
FORMS = st.recursive(
    SCALARS
    | st.sampled_from(["env:NOPE", "file:nope", "file:/", "redis://:p@h", "task", "current", "/finch", "agenton_v2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=8),
)


@given(st.dictionaries(NAMES, FORMS, max_size=6))
@settings(max_examples=300, deadline=None)
def test_no_valid_toml_of_wrong_shape_yields_anything_but_a_config_error(document: dict[str, object]) -> None:
    text = "".join(f"{name} = {in_line(value)}\n" for name, value in document.items())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "finch.toml"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            load(file, {})
        assert "not valid TOML" not in str(caught.value)
