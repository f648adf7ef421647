"""The conversation and the example of `docs/websocket.md`, held word by word; the rest is held against the code."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog_gateway.protocol import ws_protocol
from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.protocol.messages import REQUESTS
from tidelog_gateway.websocket.route import CODECS
from tidelog_proto.batch.record_batch import columns_of

PAGE = (Path(__file__).parents[3] / "docs" / "websocket.md").read_text()


def conversation() -> list[str]:
    block = re.search(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


async def test_the_documented_conversation_works(serve: Serve, log: FakeLog) -> None:
    log.logs["visits"] = [[]]
    async with serve() as served, connect(served.ws, subprotocols=[Subprotocol(JSON.subprotocol)]) as socket:
        for line in conversation():
            if line.startswith("> "):
                await socket.send(line[2:])
                continue
            async with asyncio.timeout(20):
                said = json.dumps(json.loads(await socket.recv()), separators=(",", ":"), ensure_ascii=False)
            pattern = line[2:].replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
            assert fnmatchcase(said, pattern), f"{said} is not {line}"


@pytest.mark.parametrize("short_token_chars", [1024, 0], ids=["a token in each batch", "rare tokens"])
async def test_the_example_resumes_as_documented(
    serve: Serve, log: FakeLog, short_token_chars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ws_protocol, "SHORT_TOKEN_CHARS", short_token_chars)
    example = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert example is not None
    log.logs["visits"] = [[], []]
    await log.append("visits", 0, columns_of([b"first", b"second"]))
    await log.append("visits", 1, columns_of([b"third", b"fourth"]))
    async with serve() as served:
        code = example[1].replace("ws://127.0.0.1:8080/v1/ws", served.ws)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", code, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert (process.returncode, output.decode()) == (0, example[2])


async def test_the_example_in_protobuf_prints_the_shown_output(serve: Serve, log: FakeLog) -> None:
    section = PAGE[PAGE.index("\n## Protobuf\n") :]
    example = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert example is not None
    log.logs["frames"] = [[]]
    async with serve() as served:
        code = example[1].replace("ws://127.0.0.1:8080/v1/ws", served.ws)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", code, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert (process.returncode, output.decode()) == (0, example[2])


def test_every_request_and_the_subprotocol_are_named() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == {
        *REQUESTS,
        *("batch", "gap", "end"),
        *("skip", "close"),
    }
    assert all(f"`{name}`" in PAGE for name in CODECS)
    shown = {name for line in conversation() if line.startswith("> ") for name in json.loads(line[2:]) if name != "id"}
    assert shown == set(REQUESTS) - {"auth"}
