from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gateway.secured import bearer, secured
from websockets.asyncio.client import ClientConnection


async def receive(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())


READS = (
    "/v1/topics/temps/records",
    "/v1/topics/temps/partitions/0/records",
    "/v1/topics/temps/partitions/0/records?from=latest",
    "/v1/topics/temps/partitions/0/records?offset=0",
    "/v1/topics/temps/keys/k",
    "/v1/topics/temps/stream",
)


async def test_refused_reads_name_consume_and_the_complete_command(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("temps")
        eve = await gate.key_of("eve")
        for path in READS:
            answer = await gate.http.get(path, headers=bearer(eve))
            assert answer.status_code == 403, path
            assert "consume on the topic 'temps'" in answer.json()["detail"], path
            assert answer.json()["detail"].endswith("tidelog acl grant eve consume topic:temps"), path
        async with gate.ws(eve) as socket:
            subs: list[dict[str, Any]] = [{}, {"from": "earliest"}, {"group": "g"}, {"group": "g", "member": True}]
            for number, asked in enumerate(subs):
                sub = {"sid": number, "topic": "temps", "credit": {"records": 9}} | asked
                await socket.send(json.dumps({"id": number, "sub": sub}))
                detail = (await receive(socket))["error"]["detail"]
                assert detail.endswith("tidelog acl grant eve consume topic:temps"), (asked, detail)


async def test_refused_group_of_a_reader_names_the_operation_that_a_commit_needs(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("temps")
        eve = await gate.key_of("eve", (("consume",), "topic", "temps"))
        answer = await gate.http.get("/v1/topics/temps/stream?group=g", headers=bearer(eve))
        assert answer.json()["detail"].endswith("tidelog acl grant eve group group:g")
        async with gate.ws(eve) as socket:
            sub = {"sid": 1, "topic": "temps", "group": "g", "credit": {"records": 9}}
            await socket.send(json.dumps({"id": 1, "sub": sub}))
            assert (await receive(socket))["error"]["detail"].endswith("tidelog acl grant eve group group:g")
        commit = {"offsets": [{"topic": "temps", "partition": 0, "next_offset": 0}]}
        for key in (eve, await gate.key_of("ann")):
            answer = await gate.http.put("/v1/groups/g/offsets", json=commit, headers=bearer(key))
            assert answer.json()["detail"].endswith("group group:g"), answer.text
        reset = {"to": "earliest", "topic": "temps"}
        answer = await gate.http.post("/v1/groups/g/offsets:reset", json=reset, headers=bearer(eve))
        assert answer.json()["detail"].endswith("tidelog acl grant eve group group:g")
