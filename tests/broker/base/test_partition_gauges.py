"""Gauges of partitions and of topics, and how many of them a scrape exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from tidelog_broker.base.partition_gauges import PartitionFigures, PartitionGauges


class OnePartition(NamedTuple):
    figures: PartitionFigures


def of(topic: str, *partitions: int) -> tuple[str, Sequence[OnePartition]]:
    return topic, [OnePartition(PartitionFigures(topic, number, 10 + number, number, 100)) for number in partitions]


class Scraped(NamedTuple):
    partitions: list[str]
    topics: dict[str, float]
    omitted: int


def scraped(partitions_max: int, *topics: tuple[str, Sequence[OnePartition]]) -> Scraped:
    registry = CollectorRegistry()
    gauges = PartitionGauges(registry)
    gauges.watch(lambda: topics, partitions_max)
    samples = [sample for family in registry.collect() for sample in family.samples]
    ends = [each for each in samples if each.name == "tidelog_high_watermark_offset"]
    counts = {each.labels["topic"]: each.value for each in samples if each.name == "tidelog_topic_open_partitions"}
    return Scraped([f"{each.labels['topic']}/{each.labels['partition']}" for each in ends], counts, gauges.omitted)


def test_topics_with_room_for_all_their_partitions_have_series_of_them() -> None:
    topics = of("__meta", 0), of("b", 1, 0), of("a", *range(10)), of("c", 0)
    assert scraped(100, *topics).topics == {}
    assert scraped(100, *topics).partitions[-4:] == ["b/0", "b/1", "c/0", "__meta/0"]
    assert scraped(4, *topics) == (["b/0", "b/1", "c/0", "__meta/0"], {"a": 10}, 0)
    assert scraped(3, *topics) == (["b/0", "b/1", "c/0"], {"a": 10, "__meta": 1}, 0)
    assert scraped(1, *topics) == (["c/0"], {"a": 10}, 3)
    assert scraped(0, *topics) == ([], {}, 14)


def test_series_of_a_topic_are_the_sums_of_its_partitions() -> None:
    registry = CollectorRegistry()
    PartitionGauges(registry).watch(lambda: [of("a", 0, 1, 2)], 2)
    names = ("tidelog_topic_high_watermarks", "tidelog_topic_log_starts", "tidelog_topic_bytes")
    assert [registry.get_sample_value(name, {"topic": "a"}) for name in names] == [33, 3, 300]
