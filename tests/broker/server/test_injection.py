"""Names with control characters cannot forge log lines or control a terminal."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.broker.keyed import ADMIN
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled

from tidelog_broker.base.log_lines import LineFormatter
from tidelog_proto import broker_pb2 as pb

NASTY = ["x\n2026-01-01 ERROR forged", "\x1b]0;title\x07\x1b[2J", "\u202egnp.exe", "a\u2028b\x00c", "\x9b31m"]

REQUESTS: list[Any] = [
    lambda name: {"topic_create": pb.TopicCreate(name=name)},
    lambda name: {"topic_create": pb.TopicCreate(name="__" + name)},
    lambda name: {"topic_describe": pb.TopicDescribe(name=name)},
    lambda name: {"topic_alter": pb.TopicAlter(name="__" + name)},
    lambda name: {"topic_delete": pb.TopicDelete(name="__" + name)},
    lambda name: {"committed": pb.Committed(group=name)},
    lambda name: {"commit": pb.Commit(group=name)},
    lambda name: {"group_describe": pb.GroupDescribe(group=name)},
    lambda name: {"group_delete": pb.GroupDelete(group=name)},
    lambda name: {"group_heartbeat": pb.GroupHeartbeat(group=name, member_id=name)},
    lambda name: {"cluster_change": pb.ClusterChange(drain=name)},
    lambda name: {"cluster_change": pb.ClusterChange(unsafe_recovery={"topic": name, "node_id": name})},
    lambda name: {"security_change": pb.SecurityChange(revoke_key=name)},
    lambda name: {"security_change": pb.SecurityChange(delete_user=name)},
    lambda name: {"security_change": pb.SecurityChange(create_key=pb.ApiKey(principal=name))},
    lambda name: {"access_test": pb.AccessTest(principal=name, operation=pb.OP_ALL)},
    lambda name: {"metadata": pb.Metadata(topics=[name])},
]


@pytest.mark.parametrize("name", NASTY)
async def test_names_cannot_break_log_lines(stand: Stand, key_file: Path, name: str) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        node = await stand.start(auth="required", admin_key_file=key_file)
        peer = await Peer.connect(node.port)
        stand.peers.append(peer)
        credentials = pb.Credentials(api_key=ADMIN)
        await peer.ask(hello=pb.Hello(version=1, client_id=name, software=name, credentials=credentials))
        for request in REQUESTS:
            reply = (await peer.ask(**request(name))).envelope
            said = [reply.error.message, *(topic.error.message for topic in reply.metadata_reply.topics)]
            assert all(text.isprintable() for text in said), request(name)
        for hello in (
            pb.Hello(version=1, client_id=name, credentials=pb.Credentials(token=name)),
            pb.Hello(version=1, client_id=name, credentials=pb.Credentials(scram=f"n,,n={name},r={'c' * 24}")),
        ):
            refused = await Peer.connect(node.port)
            stand.peers.append(refused)
            assert (await refused.refused(hello=hello)).message.isprintable()
        peer.send_raw(b"\xff" * 64)
        await settled(lambda: len(node.server.connections) <= 1, "garbage did not end the connection")
        node.broker.tasks.spawn(_fails(name), f"publish of {name}")
        await settled(lambda: "cannot go on" in written.getvalue(), "nothing was logged")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    lines = [line for line in written.getvalue().split("\n") if not _is_of_traceback(line)]
    assert len(lines) > len(REQUESTS) // 2
    for line in lines:
        assert line.isprintable(), line
        assert not line.startswith("2026-01-01")
    audited = [json.loads(line.partition(": ")[2]) for line in lines if line.startswith("INFO tidelog.audit: ")]
    assert name in {each.get("client_id") for each in audited}


async def _fails(name: str) -> None:
    raise RuntimeError(f"cannot go on with {name!r}")


def _is_of_traceback(line: str) -> bool:
    return not line or line.startswith(("  ", "Traceback", "RuntimeError"))
