"""A long list is encoded in pieces to the same JSON as a short one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from pydantic import BaseModel
from starlette.requests import Request

from tidelog_gateway.context import Gateway
from tidelog_gateway.json_answers import PART_ITEMS, list_response, view_maker
from tidelog_gateway.problems import Problem
from tidelog_proto.flow.fair_scheduler import Turns


class Asked:
    """A request whose client disconnects after some pieces, or never."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces
        self.client = None

    async def is_disconnected(self) -> bool:
        self.left -= 1
        return self.left < 0


def gateway() -> Gateway:
    return cast("Gateway", SimpleNamespace(caller=None, turns=Turns(), stopping=asyncio.Event()))


async def answer(count: int, *, pieces: int = 1_000, to: Gateway | None = None) -> bytes:
    asked = cast("Request", Asked(pieces))
    items = list(range(count))
    response = await list_response(to or gateway(), asked, {"a": "]}", "n": None}, ("items", items), shown)
    return bytes(response.body)


def shown(number: int) -> dict[str, Any]:
    return {"number": number}


@pytest.mark.parametrize("count", [0, 1, PART_ITEMS, PART_ITEMS + 1, 3 * PART_ITEMS])
async def test_lists_of_any_length_are_the_same_json(count: int) -> None:
    body = await answer(count)
    assert body == orjson.dumps({"a": "]}", "n": None, "items": [shown(number) for number in range(count)]})


async def test_a_client_that_disconnects_ends_the_work() -> None:
    with pytest.raises(Problem) as raised:
        await answer(10 * PART_ITEMS, pieces=2)
    assert raised.value.status == 499


async def test_a_stop_ends_the_work() -> None:
    stopping = gateway()
    stopping.stopping.set()
    with pytest.raises(Problem) as raised:
        await answer(10 * PART_ITEMS, to=stopping)
    assert raised.value.status == 503


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    added_us: int | None
    uptime_ms: int
    parts: tuple[str, ...] = ()


class ItemView(BaseModel):
    count: int
    name: str
    added_ms: int | None
    uptime_ms: int


view_of = view_maker(ItemView, Item, count=lambda item: len(item.parts))


def test_times_in_microseconds_become_milliseconds() -> None:
    assert view_of(Item("a", 1_999, 7, ("x", "y"))) == {"name": "a", "added_ms": 1, "uptime_ms": 7, "count": 2}


def test_missing_time_stays_null() -> None:
    assert view_of(Item("a", None, 7))["added_ms"] is None


def test_field_without_an_attribute_is_refused_when_the_view_is_made() -> None:
    with pytest.raises(TypeError, match=r"Item has no attribute for the field 'count' of ItemView"):
        view_maker(ItemView, Item)
