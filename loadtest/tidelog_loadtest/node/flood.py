"""A client that floods a node and ignores throttling.

    python -m tidelog_loadtest.node.flood PORT TOPIC_ID KEY_FILE ...

The client publishes the same batch over several connections with many requests in flight on each, and only counts the
responses. The protocol is implemented here with prepared bytes, so that the flood uses little processor time. The
client prints a ready line of JSON at its start, as a node does, and runs until a signal, or until the node has closed
all connections.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.limits import PROTOCOL_VERSION
from tidelog_proto.wire.frames import FrameDecoder, encode_frame

VALUE_BYTES = 500
_READ_BYTES = 1 << 16


async def flood(port: int, frame: bytes, api_key: str, *, in_flight: int) -> None:
    """Flood over one connection until it is closed.

    Args:
        port: port of the node, on this machine.
        frame: the request to send repeatedly.
        api_key: API key of the flooding principal.
        in_flight: number of pending requests.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hello = pb.Hello(version=PROTOCOL_VERSION, client_id="flood", credentials=pb.Credentials(api_key=api_key))
    writer.write(encode_frame(pb.Envelope(correlation_id=1, hello=hello)))
    decoder, under_way = FrameDecoder(), 1
    while data := await reader.read(_READ_BYTES):
        under_way -= sum(1 for _ in decoder.feed(data))
        while under_way < in_flight:
            under_way += 1
            writer.write(frame)


def frame_of(topic_id: bytes, batch_bytes: int) -> bytes:
    """Return a PUBLISH request with one batch of about `batch_bytes` bytes for partition 0."""
    values = [os.urandom(VALUE_BYTES)] * max(1, batch_bytes // VALUE_BYTES)
    batch = encode_batch(columns_of(values), now_us=0).to_bytes()
    entry = pb.PublishEntry(topic_id=topic_id, partition=0, length=len(batch))
    return encode_frame(pb.Envelope(correlation_id=1, publish=pb.Publish(entries=[entry])), len(batch)) + batch


async def _run(arguments: argparse.Namespace) -> None:
    key = (await asyncio.to_thread(Path(arguments.key_file).read_text)).strip()
    frame = frame_of(bytes.fromhex(arguments.topic_id), arguments.batch_bytes)
    sys.stdout.write(json.dumps({"event": "ready"}) + "\n")
    sys.stdout.flush()
    floods = (flood(arguments.port, frame, key, in_flight=arguments.in_flight) for _ in range(arguments.connections))
    await asyncio.gather(*floods, return_exceptions=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the arguments and flood."""
    parser = argparse.ArgumentParser(description="Flood a node.")
    parser.add_argument("port", type=int)
    parser.add_argument("topic_id", help="in hexadecimal digits")
    parser.add_argument("key_file")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--batch-bytes", type=int, default=2 << 20)
    parser.add_argument("--in-flight", type=int, default=16)
    uvloop.run(_run(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
