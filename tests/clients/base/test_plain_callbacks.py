"""Coroutine functions are refused where plain functions are called."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.clients.consume.test_consumer import T0
from tests.clients.fake_node import FakeNode

from tidelog import Client
from tidelog.base.plain_callbacks import check_callback
from tidelog.consume.background_commits import BackgroundCommits
from tidelog.errors import MemberFencedError
from tidelog.requests.partial_results import Commits


async def later(*_: object) -> None:
    raise AssertionError


class Later:
    async def __call__(self, *_: object) -> None:
        raise AssertionError

    async def method(self, *_: object) -> None:
        raise AssertionError


@pytest.mark.parametrize("callback", [later, partial(later, 1), Later(), Later().method])
def test_coroutine_function_is_refused(callback: object) -> None:
    with pytest.raises(TypeError, match="on_this must be a plain function"):
        check_callback("on_this", callback)


@pytest.mark.parametrize("callback", [None, print, lambda: None, [].append, partial(print), dict, Later])
def test_plain_callable_is_accepted(callback: object) -> None:
    check_callback("on_this", callback)


async def test_put_with_coroutine_function_accepts_nothing(node: FakeNode, client: Client) -> None:
    wrong: Any = later
    async with client.producer("t") as producer:
        with pytest.raises(TypeError, match="on_delivery must be a plain function"):
            producer.put(b"a", on_delivery=wrong)
    assert node.values("t") == []


async def test_coroutine_of_unchecked_callback_is_reported(client: Client) -> None:
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    async with client.producer("t") as producer:
        for _ in range(3):
            producer.put(b"a")
        producer.put(b"a", on_delivery=lambda *_: later())
    assert [str(context["exception"])[:35] for context in seen] == ["on_delivery must be a plain functio"]


async def test_commit_soon_refuses_coroutine_function() -> None:
    async def store(*_: object) -> Commits:
        raise AssertionError

    soon, wrong = BackgroundCommits(store, "g", dict), Later()
    with pytest.raises(TypeError, match="on_commit must be a plain function"):
        soon.add({T0: 1}, wrong)
    with pytest.raises(TypeError, match="on_commit must be a plain function"):
        soon.refuse(MemberFencedError("no member"), wrong)
    await soon.settled()
