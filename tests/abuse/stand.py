"""A measured node, and a measured gateway in front of it: two principals, and topics with records.

`quiet` is polite, `flood` is not; each has an API key and the permissions that its requests need, so that they differ
in nothing but what they send.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.abuse.probe import Probe
from tests.broker.peer import Peer
from tests.proto.large_schemas import largest_schema

from tidelog import Client
from tidelog.security import AccessRule
from tidelog_cli.up.child_processes import Child, running
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.api_key import new_key
from tidelog_proto.limits import MIB
from tidelog_proto.schema.schema_messages import message_of_schema

WIDE: Final = 4_096
"""Partitions of the topic that requests of many entries name."""
VAST: Final = 20_000 - WIDE
"""Partitions of the topic that, with the wide one, makes a group of as many as there may be."""
PARTITIONS: Final = 60_000
"""Setting `partitions_max` of the node: for topics that requests create."""
RECORDS: Final = 200_000
SINK_BYTES: Final = 64 * MIB
"""The size to which retention limits the topic that floods write to."""
NODE_BUDGETS: Final = {
    "node_in_flight_bytes": 64 * MIB,
    "node_outgoing_bytes": 64 * MIB,
    "rings_bytes": 32 * MIB,
}
"""Settings of the node: memory for requests, for answers, and for the newest batches."""
NODE_BUDGET_BYTES: Final = sum(NODE_BUDGETS.values())
GATEWAY_BUDGETS: Final = {"in_flight_bytes_max": 64 * MIB, "out_bytes_max": 128 * MIB}
"""Settings of the gateway: memory for bodies and messages, and for answers."""
GATEWAY_BUDGET_BYTES: Final = sum(GATEWAY_BUDGETS.values())
STOP_TIMEOUT_S: Final = 10.0
"""The default `stop_timeout` of a node and a gateway."""

PRINCIPALS: Final = ("quiet", "flood")


@dataclass(frozen=True, slots=True)
class Stand:
    """A node and its measurements.

    Attributes:
        child: the process.
        probe: its measurements; None where they are not taken.
        port: of the node.
        keys: API keys by principal, and `admin`.
        topics: ids by name: `quiet`, `flood` (one partition, `RECORDS` records), `sink` (is written to), `wide`,
            `typed` (has a schema of the largest size).
    """

    child: Child
    probe: Probe | None
    port: int
    keys: Mapping[str, str]
    topics: Mapping[str, bytes]


def _secret(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[Stand]:
    """Run a measured node in a directory, with topics, principals and records."""
    key = new_key().text
    admin_key = _secret(directory / "admin.key", key)
    config = directory / "node.toml"
    budgets = "".join(f"{name} = {size_bytes}\n" for name, size_bytes in NODE_BUDGETS.items())
    config.write_text(
        f'[node]\nauth = "required"\nadmin_key_file = "{admin_key}"\npartitions_max = {PARTITIONS}\n{budgets}'
    )
    probe = Probe(directory / "node.probe")
    data = str(directory / "data")
    arguments = ("node", "--config", str(config), "--data", data, "--port", "0", "--management-port", "0")
    async with AsyncExitStack() as stack:
        log = stack.enter_context((directory / "node.log").open("ab"))
        measured = (str(probe.path), *arguments)
        child = await stack.enter_async_context(running("node", measured, module="tests.abuse.probed", log=log))
        probe.pid = child.process.pid
        port = child.ready["port"]
        async with Client(f"127.0.0.1:{port}", api_key=key) as admin:
            keys = {"admin": key} | {name: await _principal(admin, name) for name in PRINCIPALS}
            topics = {
                name: (await admin.create_topic(name, flush="never", partitions=count)).topic_id
                for name, count in (("quiet", 1), ("flood", 1), ("wide", WIDE))
            }
            vast = await admin.create_topic("vast", flush="never", partitions=VAST)
            topics["vast"] = vast.topic_id
            topics["typed"] = await _create_typed(port, key)
            sink = await admin.create_topic("sink", flush="never", retention_bytes=SINK_BYTES)
            topics["sink"] = sink.topic_id
            async with admin.producer("flood") as producer:
                for first in range(0, RECORDS, 4_000):
                    await producer.send_many([b"%d" % number for number in range(first, first + 4_000)])
        yield Stand(child, probe, port, keys, topics)


async def _create_typed(port: int, api_key: str) -> bytes:
    peer = await Peer.connect(port)
    await peer.greet(api_key=api_key)
    schema = message_of_schema(largest_schema())
    made = await peer.ask(topic_create=pb.TopicCreate(name="typed", schema=schema))
    await peer.close()
    return made.envelope.topic_reply.topics[0].topic_id


async def _principal(admin: Client, name: str) -> str:
    key = await admin.security.create_key(name)
    for resource in ("topic", "group", "cluster"):
        await admin.security.grant(AccessRule(name, ("all",), resource, prefix=resource != "cluster"))
    return key.api_key


@asynccontextmanager
async def gateway(directory: Path, stand: Stand) -> AsyncIterator[tuple[Child, Probe]]:
    """Run a measured gateway with authentication, in front of a node."""
    key_file = _secret(directory / "gateway.key", stand.keys["admin"])
    probe = Probe(directory / "gateway.probe")
    arguments = ("gateway", "--bootstrap", f"127.0.0.1:{stand.port}", "--http-port", "0", "--auth", "callers")
    environ = environment() | {
        "TIDELOG_API_KEY_FILE": str(key_file),
        **{f"TIDELOG_GATEWAY_{name.upper()}": str(size_bytes) for name, size_bytes in GATEWAY_BUDGETS.items()},
    }
    with (directory / "gateway.log").open("ab") as log:
        measured = (str(probe.path), *arguments)
        async with running("gateway", measured, module="tests.abuse.probed", log=log, environ=environ) as child:
            probe.pid = child.process.pid
            yield child, probe


def environment() -> dict[str, str]:
    """Return this process's environment without settings of Tidelog."""
    import os  # noqa: PLC0415

    return {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
