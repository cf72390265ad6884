"""Where a dispatch's URLs may lead, judged by their text and by the addresses behind them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finch_gateway.wire.destinations import (
    MAX_URL_CHARS,
    DestinationRefused,
    OutboundRules,
    is_public,
    read_destination,
)


def words(text: str) -> list[str]:
    return text.split()


PUBLIC = OutboundRules()
LOCAL = OutboundRules(allow_hosts=("receiver", "*.test", "127.0.0.1", "::1", "169.254.169.254"), allow_private=True)

NOT_PUBLIC = words("""
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 168.63.129.16 169.254.169.254
    169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1
    198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::808:808
    64:ff9b:1::1 100::1 2001::1 2001:0:7f00:1::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::
    2002:808:808::1 3fff::1 5f00::1 fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254 fe80::1 fec0::1 ff02::1 ff0e::1
""")
STILL_PUBLIC = words("""
    1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.167.1.1 223.255.255.255
    2001:4860:4860::8888 2606:4700:4700::1111 2a00:1450:4001::1 2003::1
""")


def reason(url: str, rules: OutboundRules = PUBLIC) -> str:
    with pytest.raises(DestinationRefused) as caught:
        read_destination(url, rules)
    return caught.value.reason


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_an_address_that_is_or_carries_a_special_one_is_never_dialled(text: str) -> None:
    address = ip_address(text)
    assert not PUBLIC.admits(address)
    assert is_public(address) == (text == "168.63.129.16")
    bracketed = f"[{text}]" if ":" in text else text
    assert "an address that is not public" in reason(f"https://{bracketed}/")


@pytest.mark.parametrize("text", STILL_PUBLIC)
def test_a_public_address_is_dialled(text: str) -> None:
    assert is_public(ip_address(text))
    assert PUBLIC.admits(ip_address(text))
    bracketed = f"[{text}]" if ":" in text else text
    assert read_destination(f"https://{bracketed}/", PUBLIC).address == ip_address(text)


@pytest.mark.parametrize("text", ["10.0.0.1", "100.64.0.1", "127.0.0.1", "172.16.0.1", "192.168.1.1", "::1", "fd00::1"])
def test_private_addresses_are_dialled_where_the_operator_says_so(text: str) -> None:
    assert LOCAL.admits(ip_address(text))


@pytest.mark.parametrize(
    "text",
    words("""169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd00:ec2::23 fd20:ce::254
    0.0.0.0 :: 224.0.0.1 ff02::1 fe80::1 fd00::1%eth0 ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 255.255.255.255
    """),
)
def test_metadata_and_disguised_addresses_are_refused_whatever_the_operator_says(text: str) -> None:
    assert not LOCAL.admits(ip_address(text))


def test_a_metadata_address_is_refused_even_where_it_is_named() -> None:
    assert "an address that is not public" in reason("http://169.254.169.254/latest", LOCAL)


@pytest.mark.parametrize(
    "host",
    words("""2130706433 0x7f000001 0x7F.1 0177.0.0.1 017700000001 127.1 127.0.1 127.0.0.01 127.0.0.1. 1.1.1.1. 8 0x08080808
    0x 256.256.256.256 1.2.3.4.5 example.123 example.0x7f"""),
)
def test_a_number_in_disguise_is_refused_even_where_it_is_public(host: str) -> None:
    assert "number" in reason(f"https://{host}/")
    assert "number" in reason(f"http://{host}/", LOCAL)


@pytest.mark.parametrize(
    "host",
    words("""[::1%25eth0] [fe80::1%1] [::1 ::1] [] [1.2.3.4] [v1.a] [::1].test localhost a.localhost intranet
    example..com .example.com example.com. -a.example.com a-.example.com ex%61mple.com exam!ple.com *.example.com
    example.com:443: example.com: example.com:0 example.com:0443 example.com:65536 example.com:99999 example.com:443a
    example.com:+443 user@example.com user:secret@example.com @example.com example.com@127.0.0.1 example.com%00.test
    """),
)
def test_a_host_that_is_no_public_name_is_refused(host: str) -> None:
    assert "secret" not in reason(f"https://{host}/path")


@pytest.mark.parametrize("host", ["", "a" * 64 + ".example.com", ".".join(["a" * 50] * 6)])
def test_an_empty_or_over_long_host_is_refused(host: str) -> None:
    assert reason(f"https://{host}/path")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/hostname",
        "gopher://example.com/",
        "//example.com/",
        "example.com/",
        "https:example.com/",
        "https:/example.com/",
        "https:///example.com/",
        "",
        "https://",
        "javascript:alert(1)",
        "https://example.com:8443/",
        "https://example.com:80/",
        "https://example.com/#fragment",
        "https://example.com#@127.0.0.1/",
        "https://example.com\\@127.0.0.1/",
        "https://127.0.0.1\\.example.com/",
        "https://example.com/a\\b",
        " https://example.com/",
        "https://example.com/ ",
        "https://example.com/a b",
        "https://exa\tmple.com/",
        "https://example.com/\r\nX: y",
        "https://example.com/\x00",
        "https://example.com/\x7f",
        "https://example.com/é",
        "https://exämple.com/",
        "https://①②⑦.⓪.⓪.①/",
        "https://example。com/",
        "https://[::１]/",
        "https://example.com/" + "a" * MAX_URL_CHARS,
    ],
)
def test_a_url_that_is_no_plain_https_url_is_refused(url: str) -> None:
    assert reason(url)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/?",
        "/a?",
        "/a?b",
        "/a%2Fb//c/",
        "/a%2fb",
        "/%7e/~",
        "/a/./b/../c",
        "/p?z=1&a=2&a=1&q=a+b%20c&e=&f&p=%7e&&",
        "/?x=https://other.example/?y=1",
        "/a:b@c;d=1,2!$'()*",
        "/?a?b?",
        '/{a}|^`"<>[]?{a}|^`"<>[]',
        "/%zz%",
    ],
)
def test_the_target_keeps_every_byte(target: str) -> None:
    assert read_destination(f"https://example.com{target}", PUBLIC).target == target.encode()


@pytest.mark.parametrize(("url", "target"), [("https://a.example", b"/"), ("https://a.example?x=1", b"/?x=1")])
def test_an_empty_path_is_signed_as_the_slash_that_is_sent(url: str, target: bytes) -> None:
    assert read_destination(url, PUBLIC).target == target


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("https://Example.COM/a", ("https", "example.com", 443), b"example.com"),
        ("HTTPS://example.com:443/a", ("https", "example.com", 443), b"example.com"),
        ("https://xn--bcher-kva.example/", ("https", "xn--bcher-kva.example", 443), b"xn--bcher-kva.example"),
        ("https://a_b.example/", ("https", "a_b.example", 443), b"a_b.example"),
        ("https://[2606:4700::1]/", ("https", "2606:4700::1", 443), b"[2606:4700::1]"),
        ("https://1.1.1.1/", ("https", "1.1.1.1", 443), b"1.1.1.1"),
    ],
)
def test_the_origin_and_the_host_header_follow_the_url(
    url: str, origin: tuple[str, str, int], authority: bytes
) -> None:
    destination = read_destination(url, PUBLIC)
    assert (destination.origin, destination.authority) == (origin, authority)


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://receiver/", b"receiver"),
        ("http://127.0.0.1:8080/", b"127.0.0.1:8080"),
        ("https://[::1]:8443/", b"[::1]:8443"),
        ("http://deep.down.test:81/", b"deep.down.test:81"),
    ],
)
def test_allow_private_admits_http_any_port_and_local_names_of_the_allowed_hosts(url: str, authority: bytes) -> None:
    assert read_destination(url, LOCAL).authority == authority


@pytest.mark.parametrize("host", ["test", "xtest", "a.test.example", "other", "127.0.0.2", "receiver.example"])
def test_allow_private_admits_no_other_host(host: str) -> None:
    assert "not among the allowed ones" in reason(f"http://{host}/", LOCAL)


def test_allow_hosts_narrows_the_public_internet() -> None:
    rules = OutboundRules(allow_hosts=("callbacks.Finch.example", "*.finch.example"))
    for host in ("callbacks.finch.example", "CALLBACKS.finch.example", "a.b.finch.example"):
        assert read_destination(f"https://{host}/", rules)
    for host in ("finch.example", "evilfinch.example", "finch.example.evil.example", "1.1.1.1"):
        assert "not among the allowed ones" in reason(f"https://{host}/", rules)
    assert "not https" in reason("http://a.finch.example/", rules)


def test_other_ports_are_a_setting() -> None:
    rules = OutboundRules(ports=(443, 8443))
    assert read_destination("https://example.com:8443/", rules).port == 8443
    assert "port" in reason("https://example.com:444/", rules)


def test_allow_private_without_hosts_is_no_rule() -> None:
    with pytest.raises(ValueError, match="allow_hosts"):
        OutboundRules(allow_private=True)


def test_neither_a_refusal_nor_a_destination_shows_the_path_or_query() -> None:
    for url in ("http://example.com/se-cret?se=cret", "https://intranet/se-cret", "https://u:se-cret@a.example/"):
        assert "se-cret" not in reason(url)
        assert "example" not in reason(url)
    assert "se-cret" not in repr(read_destination("https://example.com/se-cret?a=se-cret", PUBLIC))


@given(st.text(max_size=60) | st.from_regex(r"\Ahttps?://[\x21-\x7e]{0,40}\Z"))
def test_any_text_is_taken_as_it_is_or_refused(text: str) -> None:
    for rules in (PUBLIC, LOCAL):
        try:
            destination = read_destination(text, rules)
        except DestinationRefused:
            continue
        assert destination.target.startswith(b"/")
        assert text.encode().endswith(destination.target.removeprefix(b"/"))
        assert rules.names(destination.host)
