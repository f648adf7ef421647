"""ACCESS_TEST with `enforce`, for a caller that is about to act."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.broker.keyed import ADMIN
from tests.broker.stand import Stand

from tidelog import Client
from tidelog.errors import ForbiddenError
from tidelog.security import AccessRule
from tidelog_proto import broker_pb2 as pb


async def test_enforced_access_test_is_refused_and_audited(
    stand: Stand, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with Client(f"127.0.0.1:{node.port}", api_key=ADMIN) as admin:
        made = await admin.security.create_key("ann")
        await admin.security.grant(AccessRule("ann", ("produce",), "topic", "hers"))
        async with Client(f"127.0.0.1:{node.port}", api_key=made.api_key) as ann:
            await ann.security.check("produce", "topic", "hers")
            with pytest.raises(ForbiddenError):
                await ann.security.check("produce", "topic", "another")
    assert any("access_test" in line and '"ann"' in line for line in caplog.messages)


async def test_enforced_access_test_accepts_no_other_principal(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    asked = pb.AccessTest(principal="ann", operation=pb.OP_PRODUCE, resource=pb.RES_TOPIC, name="t", enforce=True)
    assert (await peer.refused(access_test=asked)).code == pb.INVALID_REQUEST


async def test_enforced_access_test_returns_the_refusal(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with Client(f"127.0.0.1:{node.port}", api_key=ADMIN) as admin:
        made = await admin.security.create_key("ann")
    peer = await stand.peer(greet=False)
    await peer.greet(api_key=made.api_key)
    asked = pb.AccessTest(operation=pb.OP_PRODUCE, resource=pb.RES_TOPIC, name="t")
    assert not (await peer.ask(access_test=asked)).envelope.access_test_reply.allowed
    asked.enforce = True
    assert (await peer.refused(access_test=asked)).code == pb.FORBIDDEN
