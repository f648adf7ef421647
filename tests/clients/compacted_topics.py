"""Compacted topics, created by a wire request."""

from __future__ import annotations

from tidelog.cluster.connection import connect
from tidelog_proto import broker_pb2 as pb


async def create_compacted(port: int, name: str, **config: int) -> None:
    envelope = pb.Envelope(
        topic_create=pb.TopicCreate(name=name, config=pb.TopicConfig(cleanup=pb.COMPACT, **config))  # type: ignore[arg-type] # numbers
    )
    await ask(port, envelope)


async def ask(port: int, envelope: pb.Envelope) -> pb.Envelope:
    connection = await connect(("127.0.0.1", port), client_id="test", software="test", timeout_s=10)
    try:
        return (await connection.call(envelope, timeout_s=10)).envelope
    finally:
        connection.close()
