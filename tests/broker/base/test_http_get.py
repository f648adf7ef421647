from __future__ import annotations

import asyncio
import ssl

import pytest
from tests.broker.issuer import Publisher, as_answer

from tidelog_broker.base.http_get import checked_url, http_get

TLS = ssl.create_default_context()


async def get(url: str, timeout_s: float = 20) -> bytes:
    return await http_get(checked_url(url), tls=TLS, bytes_max=1000, timeout_s=timeout_s)


async def test_document_is_returned_completely() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    for answer in (as_answer(b"hello"), b"HTTP/1.0 200 OK\r\n\r\nhello", chunked):
        async with Publisher(answer) as there:
            assert await get(there.url) == b"hello"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (as_answer(b"x" * 1001), "larger than 1000"),
        (as_answer(b"x" * 1_000_000), "larger than"),
        (as_answer(b"", "302 Found\r\nLocation: http://127.0.0.1:1/"), "status 302"),
        (as_answer(b"", "500 No"), "status 500"),
        (b"SSH-2.0-OpenSSH\r\n", "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "4 bytes too early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not valid HTTP"),
        (b"", "not valid HTTP"),
    ],
)
async def test_invalid_answer_is_an_error(answer: bytes, why: str) -> None:
    async with Publisher(answer) as there:
        with pytest.raises(OSError, match=why):
            await get(there.url)


async def test_silent_server_times_out() -> None:
    async with Publisher(None) as there:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(OSError, match=r"within 0\.2 s"):
            await get(there.url, 0.2)
        assert asyncio.get_running_loop().time() - began_s < 10
        url = there.url
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await get(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/keys",
        "ftp://issuer.example/keys",
        "https:///keys",
        "https://user:word@issuer.example/",
        "https://issuer.example:port/",
        "https://issuer.example/a b",
        "https://issuer.example/a\r\nHost: other",
        "file:///etc/passwd",
    ],
)
def test_unsafe_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        checked_url(url)


@pytest.mark.parametrize("scheme", ["https", "ftp", "htps"])
def test_a_refusal_does_not_contain_the_password_of_the_url(scheme: str) -> None:
    with pytest.raises(ValueError, match="a URL must not contain a user name, a password") as refused:
        checked_url(f"{scheme}://user:word@issuer.example/")
    assert "word@" not in str(refused.value)


def test_https_and_loopback_urls_are_accepted() -> None:
    for url in ("https://issuer.example/keys?v=1", "http://127.0.0.1:8/keys", "http://localhost/", "http://[::1]:8/"):
        assert checked_url(url).hostname
