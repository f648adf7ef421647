"""The loops around confluent-kafka, with a fake of it: the project does not depend on the library."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_loadtest.clients import kafka_loops
from tidelog_loadtest.clients.client_loops import ONE_BY_ONE, ONE_BY_ONE_MAX, PUBLISHING, READING, Records
from tidelog_loadtest.clients.kafka_loops import KafkaLoops
from tidelog_loadtest.measure.product import WrongCountError

RECORDS = Records.of(2_500, 20)


class FakeBroker:
    """State shared by the parts of the fake."""

    def __init__(self) -> None:
        self.topics: dict[str, list[tuple[bytes, bytes | None]]] = {}
        self.room = 400
        self.queued: list[tuple[str, bytes, bytes | None, Any]] = []
        self.loses = 0
        self.makes_topics = True
        self.unknown_for = 0
        """Number of requests for a new topic before the broker lists it."""

    def deliver(self) -> None:
        for topic, value, key, callback in self.queued:
            self.topics[topic].append((value, key))
            if callback is not None:
                callback(None, object())
        self.queued.clear()


class FakeProducer:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def list_topics(self, topic: str, timeout: float) -> Any:
        return self.topics_of(topic)

    def topics_of(self, topic: str) -> Any:
        self._broker.unknown_for -= 1
        partitions = {0: None} if topic in self._broker.topics and self._broker.unknown_for < 0 else {}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions, error="no such topic")})

    def produce(self, topic: str, value: bytes, key: bytes | None = None, on_delivery: Any = None) -> None:
        if len(self._broker.queued) == self._broker.room:
            raise BufferError("full")
        self._broker.queued.append((topic, value, key, on_delivery))

    def produce_batch(self, topic: str, messages: list[dict[str, Any]]) -> int:
        taken = 0
        for message in messages:
            if len(self._broker.queued) == self._broker.room:
                message["_error"] = "full"
            else:
                self._broker.queued.append((topic, message["value"], message.get("key"), None))
                taken += 1
        return taken

    def poll(self, _timeout_s: float) -> None:
        if len(self._broker.queued) == self._broker.room:
            self._broker.deliver()

    def flush(self, _timeout_s: float) -> int:
        self._broker.deliver()
        return self._broker.loses


class FakeConsumer(FakeProducer):
    def assign(self, _partitions: list[Any]) -> None:
        self._at = 0

    def consume(self, count: int, _timeout_s: float) -> list[Any]:
        (records,) = (records for records in self._broker.topics.values() if records)
        some = records[self._at : self._at + min(count, 1_000)]
        self._at += len(some)
        return [SimpleNamespace(value=lambda value=value: value, error=lambda: None) for value, _ in some]

    def close(self) -> None:
        pass


class FakeAdmin(FakeProducer):
    def create_topics(self, topics: list[Any], request_timeout: float) -> dict[str, Future[None]]:
        done: Future[None] = Future()
        if self._broker.makes_topics:
            self._broker.topics[topics[0].name] = []
            done.set_result(None)
        else:
            done.set_exception(ValueError("not allowed"))
        return {topics[0].name: done}

    def delete_topics(self, topics: list[str], request_timeout: float) -> dict[str, Future[None]]:
        del self._broker.topics[topics[0]]
        done: Future[None] = Future()
        done.set_result(None)
        return {topics[0]: done}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    broker = FakeBroker()
    library: Any = ModuleType("confluent_kafka")
    library.__version__ = "9.9"
    library.OFFSET_BEGINNING = -2
    producer: Any = lambda _config: FakeProducer(broker)  # noqa: E731 - it gets an attribute
    producer.produce_batch = FakeProducer.produce_batch
    library.Producer = producer
    library.Consumer = lambda _config: FakeConsumer(broker)
    library.TopicPartition = lambda *given: given
    admin: Any = ModuleType("confluent_kafka.admin")
    admin.AdminClient = lambda _config: FakeAdmin(broker)
    admin.NewTopic = lambda name, _partitions, _copies: SimpleNamespace(name=name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", library)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", admin)
    return broker


def test_without_the_library_the_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(CommandFailed, match="pip install confluent-kafka") as caught:
        KafkaLoops("h:1")
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("name", [*PUBLISHING, ONE_BY_ONE])
def test_every_record_is_published_once_with_a_temporarily_full_queue(
    broker: FakeBroker, name: str, *, batches: bool
) -> None:
    if not batches:
        del sys.modules["confluent_kafka"].Producer.produce_batch
    kafka = KafkaLoops("h:1")
    counterpart = kafka.counterpart(name)
    if counterpart is None:
        assert name.startswith("gather")
        return
    assert ("batch" in counterpart) is (batches and name.startswith("send_"))
    topic = kafka.make_topic(4)
    timed = kafka.run(name, topic, RECORDS)
    count = ONE_BY_ONE_MAX if name == ONE_BY_ONE else len(RECORDS.values)
    assert timed.records == count
    assert (timed.p50_s is not None) is (name == ONE_BY_ONE)
    keys = RECORDS.keys if name.endswith("keys") else [None] * count
    assert broker.topics[topic] == list(zip(RECORDS.values[:count], keys[:count], strict=True))
    kafka.delete_topic(topic)
    assert broker.topics == {}


def test_a_missing_acknowledgement_is_an_error(broker: FakeBroker) -> None:
    kafka = KafkaLoops("h:1")
    broker.loses = 3
    with pytest.raises(WrongCountError, match="did not acknowledge 3 of 2500 records"):
        kafka.run("put", kafka.make_topic(1), RECORDS)


def test_reading_counts_records(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = KafkaLoops("h:1")
    topic = kafka.make_topic(1)
    kafka.run("put", topic, RECORDS)
    assert kafka.counterpart(READING[0]) == "consume()"
    assert kafka.read(topic, 2_500).records == 2_500
    monkeypatch.setattr("tidelog_loadtest.clients.kafka_loops.ANSWER_S", 0.05)
    with pytest.raises(WrongCountError, match="and 2500 were read"):
        kafka.read(topic, 2_501)


def test_a_topic_that_the_broker_does_not_list_yet_is_awaited(broker: FakeBroker) -> None:
    broker.unknown_for = 2
    assert KafkaLoops("h:1").make_topic(4) in broker.topics
    assert broker.unknown_for == -1


def test_a_topic_that_the_broker_does_not_create_is_an_error(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.makes_topics = False
    monkeypatch.setattr(kafka_loops, "ANSWER_S", 0.2)
    with pytest.raises(CommandFailed, match=r"did not create topic tidelog-bench-[0-9a-f]+ within 0\.2 s: not allowed"):
        KafkaLoops("h:1").make_topic(4)
