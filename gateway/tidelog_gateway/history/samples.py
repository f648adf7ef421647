"""The encoding of a sample that one worker sends to the others."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from tidelog.model import TopicFigures
from tidelog_gateway.history.history import GatewayCounters


def encode(at_ms: int, topics: Mapping[str, TopicFigures], gateway: GatewayCounters) -> bytes:
    """Encode a sample."""
    rows = {name: [figures.topic_id.hex(), *_numbers(figures)] for name, figures in topics.items()}
    counters = [gateway.requests, gateway.published, gateway.delivered]
    below = [[str(bound), count] for bound, count in gateway.publishes_below.items()]
    return orjson.dumps({"at_ms": at_ms, "topics": rows, "gateway": counters, "below": below})


def decode(sample: bytes) -> tuple[int, dict[str, TopicFigures], GatewayCounters]:
    """Decode the time, the topics and the counters of a sample."""
    data = orjson.loads(sample)
    topics = {name: TopicFigures(bytes.fromhex(row[0]), *row[1:]) for name, row in data["topics"].items()}
    below = {float(bound): count for bound, count in data["below"]}
    requests, published, delivered = data["gateway"]
    return data["at_ms"], topics, GatewayCounters(requests, published, delivered, below)


def _numbers(figures: TopicFigures) -> list[int]:
    return [
        figures.partitions,
        figures.records,
        figures.end_offsets,
        figures.size_bytes,
        figures.idle,
        figures.unavailable,
        figures.under_replicated,
    ]
