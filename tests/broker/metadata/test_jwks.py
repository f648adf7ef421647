"""Loading of token keys: unavailable, rotated and invalid sources, and the load interval."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.issuer import Issuer, Publisher, as_answer
from tests.broker.stand import settled

from tidelog_broker.base.offload import Offload
from tidelog_broker.metadata.jwks import JWT_IDENTITY_PREFIX, WAITING_MAX, Jwks
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.settings import SettingsError


class Followed:
    """Records the callbacks of a `Jwks`."""

    def __init__(self, jwks: Jwks) -> None:
        self.jwks = jwks

    async def code(self, key_id: str | None) -> int:
        """Return what asking for a key ends with; 0: a key."""
        try:
            await asyncio.wait_for(self.jwks.key(key_id), 20)
        except ProtocolError as error:
            return error.code
        return 0


@asynccontextmanager
async def followed(source: str, *, every_s: float = 60, apart_s: float = 0.01) -> AsyncIterator[Followed]:
    workers = IoWorkers(1, name="secret")
    counts = {"failed": 0, "changed": 0}
    jwks = Jwks(
        source,
        workers=Offload(workers, asyncio.get_running_loop()),
        failed=lambda: counts.update(failed=counts["failed"] + 1),
        changed=lambda: counts.update(changed=counts["changed"] + 1),
        apart_s=apart_s,
    )
    task = asyncio.create_task(jwks.follow(every_s=every_s, again_s=every_s))
    try:
        yield Followed(jwks)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        workers.close()


async def test_unknown_key_causes_a_load_and_valid_keys_stay() -> None:
    issuer = Issuer()
    async with Publisher(as_answer(issuer.document)) as there, followed(there.url) as one:
        assert await one.code("one") == 0
        assert await one.code("two") == pb.UNAUTHENTICATED
        issuer.add("two")
        there.answer = as_answer(issuer.document)
        assert await one.code("two") == 0
        assert await one.code(None) == pb.UNAUTHENTICATED, "there are several"
        for garbage in (as_answer(b"{}"), as_answer(b"", "503 Away"), b"?"):
            there.answer = garbage
            assert await one.code("three") == pb.EPOCH_CHANGING, "it may be a new one"
            assert await one.code("one") == 0
        ended = JWT_IDENTITY_PREFIX + (await one.jwks.key("one")).fingerprint
        assert not one.jwks.has_ended(ended)
        del issuer.keys["one"]
        there.answer = as_answer(issuer.document)
        assert await one.code("three") == pb.UNAUTHENTICATED
        assert one.jwks.has_ended(ended)
        assert not one.jwks.has_ended("key/abc")


async def test_missing_source_refuses_tokens_only_retriably() -> None:
    issuer = Issuer()
    async with Publisher(as_answer(b"", "500 No")) as there, followed(there.url, every_s=0.01) as one:
        assert await one.code("one") == pb.EPOCH_CHANGING
        there.answer = as_answer(issuer.document)
        await settled(lambda: len(issuer.keys) == 1 and not one.jwks.has_ended("key/"), "")
        async with asyncio.timeout(20):
            while await one.code("one"):
                pass


async def test_loads_have_a_minimum_interval() -> None:
    async with Publisher(as_answer(Issuer().document)) as there, followed(there.url, apart_s=30) as one:
        assert await one.code("one") == 0
        asking = [asyncio.create_task(one.code("two")) for _ in range(WAITING_MAX + 5)]
        done, waiting = await asyncio.wait(asking, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in done} == {pb.OVERLOADED}
        await settled(lambda: sum(task.done() for task in asking) == 5, "more than the bound wait")
        assert there.asked == 1
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_load_answers_requests_that_arrive_during_it() -> None:
    issuer = Issuer()
    async with Publisher(as_answer(issuer.document)) as there, followed(there.url, apart_s=0.5) as one:
        assert await one.code("one") == 0
        issuer.add("two")
        there.answer = None
        first = asyncio.create_task(one.code("two"))
        await settled(lambda: there.asked == 2, "nobody looks")
        late = [asyncio.create_task(one.code(key_id)) for key_id in ("two", "three")]
        await asyncio.sleep(0.01)
        there.answer_last(as_answer(issuer.document))
        assert list(await asyncio.gather(first, late[0])) == [0, 0]
        assert there.asked == 2, "it waits for no other look"
        there.answer = as_answer(issuer.document)
        assert await late[1] == pb.UNAUTHENTICATED
        assert there.asked == 3


async def test_changed_key_file_is_reloaded(tmp_path: Path) -> None:
    issuer = Issuer()
    path = issuer.save(tmp_path / "jwks.json")
    async with followed(str(path), every_s=0.01) as one:
        first = JWT_IDENTITY_PREFIX + (await one.jwks.key("one")).fingerprint
        issuer.add("one")
        path.write_bytes(b"half of a fi")
        assert await one.code("two") == pb.EPOCH_CHANGING
        assert not one.jwks.has_ended(first)
        issuer.save(path)
        await settled(lambda: one.jwks.has_ended(first), "the file was not read again")
        path.unlink()
        assert await one.code("two") == pb.EPOCH_CHANGING
        assert await one.code("one") == 0
    with pytest.raises(SettingsError, match="cannot read jwt_jwks"):
        await followed(str(path)).__aenter__()
    path.write_text("{}")
    with pytest.raises(SettingsError, match="contains no usable keys"):
        await followed(str(path)).__aenter__()
