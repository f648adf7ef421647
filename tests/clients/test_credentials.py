from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.private_files import keep_private

from tidelog import Client
from tidelog import sync as blocking
from tidelog.credentials import ApiKeyFile, Token, TokenFile, asked_each_time, showing
from tidelog.errors import InvalidRequestError, NodeUnreachableError
from tidelog_proto.limits import TOKEN_BYTES_MAX

VARIABLES = ("TIDELOG_API_KEY", "TIDELOG_API_KEY_FILE", "TIDELOG_TOKEN_FILE")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_key_file_is_read_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "key"
    keep_private(path, "one\n")
    asked = asked_each_time(ApiKeyFile(path))
    assert asked() == "one"
    path.write_text("two")
    assert asked() == "two"
    path.unlink()
    with pytest.raises(InvalidRequestError, match="cannot read the API key"):
        asked()


async def test_precedence_of_arguments_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await showing().shown()).credentials.WhichOneof("kind") is None
    token = tmp_path / "token"
    keep_private(token, "a.b.c\n")
    monkeypatch.setenv("TIDELOG_TOKEN_FILE", str(token))
    assert (await showing().shown()).credentials.token == "a.b.c"
    monkeypatch.setenv("TIDELOG_API_KEY", "variable")
    assert (await showing().shown()).credentials.api_key == "variable"
    path = tmp_path / "key"
    keep_private(path, "file")
    monkeypatch.setenv("TIDELOG_API_KEY_FILE", str(path))
    assert (await showing().shown()).credentials.api_key == "file"
    assert (await showing("given").shown()).credentials.api_key == "given"
    assert (await showing(credentials="given").shown()).credentials.api_key == "given"
    assert (await showing(credentials=Token("d.e.f")).shown()).credentials.token == "d.e.f"


def test_api_key_and_credentials_exclude_each_other() -> None:
    for kind in (Client, blocking.Client):
        with pytest.raises(InvalidRequestError, match="exclude each other"):
            kind("127.0.0.1:1", api_key="tlk", credentials=Token("a.b.c"))


async def test_token_is_read_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "token"
    keep_private(path, "a.b.c\n")
    file = TokenFile(path)
    assert (await file.shown()).credentials.token == "a.b.c"
    path.write_text("d.e.f")
    assert (await file.shown()).credentials.token == "d.e.f"
    path.unlink()
    with pytest.raises(InvalidRequestError, match="cannot read the token"):
        await file.shown()
    threads: list[threading.Thread] = []

    def plain() -> str:
        threads.append(threading.current_thread())
        return f"plain.{len(threads)}"

    async def later() -> str:
        await asyncio.sleep(0)
        return "later"

    shows = Token(plain)
    assert [(await shows.shown()).credentials.token for _ in range(2)] == ["plain.1", "plain.2"]
    assert threading.current_thread() not in threads, "plain functions may block"
    assert (await Token(later).shown()).credentials.token == "later"
    assert (await Token(lambda: later()).shown()).credentials.token == "later"  # noqa: PLW0108 - a plain function that returns an awaitable


async def test_invalid_token_is_refused_without_showing_it() -> None:
    for text in ("", "a\u00e9b", "secret" + "x" * TOKEN_BYTES_MAX):
        with pytest.raises(InvalidRequestError, match="ASCII") as refused:
            await Token(text).shown()
        assert "secret" not in str(refused.value)


async def test_failing_token_function_is_called_again(tmp_path: Path) -> None:
    def away() -> str:
        raise ConnectionError("the issuer is away")

    with pytest.raises(NodeUnreachableError, match="the issuer is away") as failed:
        await Token(away).shown()
    assert failed.value.retriable
    assert failed.value.definite

    async def never() -> str:
        await asyncio.sleep(3600)
        return ""

    async with Client("127.0.0.1:1", credentials=Token(never), request_timeout_s=0.2) as client:
        with pytest.raises(
            NodeUnreachableError, match=r"function that provides the credentials did not return within 0\.2 s"
        ):
            await client.connect()
