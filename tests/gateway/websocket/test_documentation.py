"""The conversation in `docs/websocket.md`, held word by word; the rest of the page is held against the code."""

from __future__ import annotations

import asyncio
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog_gateway.websocket.messages import REQUESTS
from tidelog_gateway.websocket.ws_protocol import SUBPROTOCOL

PAGE = (Path(__file__).parents[3] / "docs" / "websocket.md").read_text()


def conversation() -> list[str]:
    block = re.search(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


async def test_the_conversation_goes_as_it_is_written(serve: Serve, log: FakeLog) -> None:
    log.logs["visits"] = [[]]
    async with serve() as served, connect(served.ws, subprotocols=[Subprotocol(SUBPROTOCOL)]) as socket:
        for line in conversation():
            if line.startswith("> "):
                await socket.send(line[2:])
                continue
            async with asyncio.timeout(20):
                said = json.dumps(json.loads(await socket.recv()), separators=(",", ":"), ensure_ascii=False)
            pattern = line[2:].replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
            assert fnmatchcase(said, pattern), f"{said} is not {line}"


def test_every_request_and_the_subprotocol_are_named() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == {*REQUESTS, "batch", "end"}
    assert f"`{SUBPROTOCOL}`" in PAGE
    shown = {name for line in conversation() if line.startswith("> ") for name in json.loads(line[2:]) if name != "id"}
    assert shown == set(REQUESTS) - {"auth"}
