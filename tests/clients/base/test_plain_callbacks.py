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
def test_what_has_to_be_awaited_is_refused(callback: object) -> None:
    with pytest.raises(TypeError, match="on_this is a plain function"):
        check_callback("on_this", callback)


@pytest.mark.parametrize("callback", [None, print, lambda: None, [].append, partial(print), dict, Later])
def test_what_is_called_is_taken(callback: object) -> None:
    check_callback("on_this", callback)


async def test_put_refuses_one_and_accepts_nothing(node: FakeNode, client: Client) -> None:
    wrong: Any = later
    async with client.producer("t") as producer:
        with pytest.raises(TypeError, match="on_delivery is a plain function"):
            producer.put(b"a", on_delivery=wrong)
    assert node.values("t") == []


async def test_one_that_joined_without_a_look_is_told_of(client: Client) -> None:
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    async with client.producer("t") as producer:
        for _ in range(3):
            producer.put(b"a")
        producer.put(b"a", on_delivery=lambda *_: later())
    assert [str(context["exception"])[:29] for context in seen] == ["on_delivery is a plain functi"]


async def test_committing_soon_refuses_one() -> None:
    async def store(*_: object) -> Commits:
        raise AssertionError

    soon, wrong = BackgroundCommits(store, "g", dict), Later()
    with pytest.raises(TypeError, match="on_commit is a plain function"):
        soon.add({T0: 1}, wrong)
    with pytest.raises(TypeError, match="on_commit is a plain function"):
        soon.refuse(MemberFencedError("no member"), wrong)
    await soon.settled()
