"""The loops of `client_loops` around confluent-kafka, against an existing Kafka broker.

confluent-kafka is imported on demand: it is not a dependency of the project. Its calls block, so call these functions
in a thread.
"""

from __future__ import annotations

import importlib
import secrets
import time
from typing import Any, Final

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_loadtest.clients.client_loops import ONE_BY_ONE, ONE_BY_ONE_MAX, READING, Clock, Records, Timed
from tidelog_loadtest.measure.product import WrongCountError

ANSWER_S: Final = 5.0
"""Timeout for a broker's response."""
LOOK_S: Final = 0.1
READ_AT_A_TIME: Final = 10_000
QUEUE_RECORDS: Final = 1_000_000


class KafkaLoops:
    """Loops on one Kafka broker.

    Args:
        bootstrap: HOST:PORT of the broker.

    Raises:
        CommandFailed: confluent-kafka is not installed.
    """

    def __init__(self, bootstrap: str) -> None:
        try:
            self._library: Any = importlib.import_module("confluent_kafka")
            self._admin: Any = importlib.import_module("confluent_kafka.admin")
        except ImportError as error:
            raise CommandFailed(
                f"--kafka requires confluent-kafka, which cannot be imported ({error}); install it with "
                "`python -m pip install confluent-kafka`",
                EXIT_USAGE,
            ) from error
        self._bootstrap = bootstrap
        self._batches = hasattr(self._library.Producer, "produce_batch")

    @property
    def version(self) -> str:
        """The version of confluent-kafka."""
        return str(self._library.__version__)

    def counterpart(self, loop: str) -> str | None:
        """Return the name of the Kafka call that corresponds to a loop of `client_loops`; None without such a call."""
        if loop in READING:
            return "consume()"
        if loop == ONE_BY_ONE:
            return "produce() and flush()"
        if loop.startswith(("send_many", "send_arrow")):
            keyed = loop.endswith("keys")
            call = "produce_batch()" if self._batches else "produce()"
            return f"{call}, keys" if keyed else call
        return {
            "put": "produce()",
            "put, keys": "produce(), keys",
            "put, callback": "produce(), callback",
            "enqueue": "produce()",
        }.get(loop)

    def make_topic(self, partitions: int) -> str:
        """Create a topic and return its name. If that is denied, the broker may create it on the metadata request.

        Raises:
            CommandFailed: the broker does not respond, or the topic is still missing.
        """
        name = f"tidelog-bench-{secrets.token_hex(4)}"
        admin = self._admin.AdminClient({"bootstrap.servers": self._bootstrap, "allow.auto.create.topics": True})
        new = self._admin.NewTopic(name, partitions, 1)
        refused = admin.create_topics([new], request_timeout=ANSWER_S)[name].exception(2 * ANSWER_S)
        give_up = time.monotonic() + ANSWER_S
        while True:
            try:
                topic = admin.list_topics(name, timeout=ANSWER_S).topics[name]
            except Exception as error:
                raise CommandFailed(
                    f"the Kafka broker at {self._bootstrap} did not list topic {name}: {error}; check the address "
                    "given with --kafka"
                ) from error
            if topic.partitions:
                return name
            if time.monotonic() >= give_up:  # right after its start, a broker may not list its topics yet
                raise CommandFailed(
                    f"the Kafka broker at {self._bootstrap} did not create topic {name} within {ANSWER_S:g} s: "
                    f"{refused or topic.error}; see the broker's log"
                )
            time.sleep(LOOK_S)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; ignore a refusal of the broker."""
        admin = self._admin.AdminClient({"bootstrap.servers": self._bootstrap})
        admin.delete_topics([name], request_timeout=ANSWER_S)[name].exception(2 * ANSWER_S)

    def run(self, loop: str, topic: str, records: Records) -> Timed:
        """Run the counterpart of a publish loop of `client_loops`.

        Raises:
            WrongCountError: not all records were acknowledged.
        """
        producer = self._library.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "queue.buffering.max.kbytes": QUEUE_RECORDS,
            }
        )
        producer.list_topics(
            topic, timeout=ANSWER_S
        )  # loads the topic's metadata before the clock starts, as the loops on Tidelog do
        if loop == ONE_BY_ONE:
            return self._one_by_one(producer, topic, records)
        keyed = loop.endswith("keys")
        clock = Clock()
        if loop.startswith(("send_many", "send_arrow")) and self._batches:
            count = 1_000 if "1,000" in loop else 10_000
            for at in range(0, len(records.values), count):
                pairs = zip(records.values[at : at + count], records.keys[at : at + count], strict=True)
                messages = [{"value": value, "key": key} if keyed else {"value": value} for value, key in pairs]
                self._whole_batch(producer, topic, messages)
        elif keyed:
            self._keyed(producer, topic, records)
        elif loop.endswith("callback"):
            self._with_callback(producer, topic, records)
        else:
            self._plain(producer, topic, records)
        left = producer.flush(12 * ANSWER_S)
        timed = clock.stop(len(records.values))
        if left:
            raise WrongCountError(
                f"topic {topic!r}: the Kafka broker did not acknowledge {left} of {len(records.values)} records within "
                f"{12 * ANSWER_S:g} s; see the broker's log"
            )
        return timed

    def read(self, topic: str, expected: int) -> Timed:
        """Read a topic from its beginning.

        Raises:
            WrongCountError: the number of records read differs from the number stored.
        """
        consumer = self._library.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": topic, "enable.auto.commit": False}
        )
        beginning = self._library.OFFSET_BEGINNING
        partitions = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
        consumer.assign([self._library.TopicPartition(topic, number, beginning) for number in partitions])
        count = 0
        clock = Clock()
        quiet_at = time.monotonic() + ANSWER_S
        while count < expected and time.monotonic() < quiet_at:
            messages = consumer.consume(READ_AT_A_TIME, 0.1)
            values = [message.value() for message in messages if message.error() is None]
            count += len(values)
            if values:
                quiet_at = time.monotonic() + ANSWER_S
        timed = clock.stop(count)
        consumer.close()
        if count != expected:
            raise WrongCountError(
                f"topic {topic!r}: the Kafka broker acknowledged {expected} records, and {count} were read: some were "
                f"read twice, or lost, or not received for {ANSWER_S:g} s"
            )
        return timed

    @staticmethod
    def _plain(producer: Any, topic: str, records: Records) -> None:
        produce = producer.produce
        for value in records.values:
            try:
                produce(topic, value)
            except BufferError:
                producer.poll(1.0)
                produce(topic, value)

    @staticmethod
    def _keyed(producer: Any, topic: str, records: Records) -> None:
        produce = producer.produce
        for value, key in zip(records.values, records.keys, strict=True):
            try:
                produce(topic, value, key)
            except BufferError:
                producer.poll(1.0)
                produce(topic, value, key)

    @staticmethod
    def _with_callback(producer: Any, topic: str, records: Records) -> None:
        def noted(error: object, message: object) -> None:
            pass

        produce, poll = producer.produce, producer.poll
        for number, value in enumerate(records.values):
            try:
                produce(topic, value, on_delivery=noted)
            except BufferError:
                poll(1.0)
                produce(topic, value, on_delivery=noted)
            if number % 1_000 == 0:
                poll(0)

    def _whole_batch(self, producer: Any, topic: str, messages: list[dict[str, bytes]]) -> None:
        while messages:
            producer.produce_batch(topic, messages)
            # `produce_batch` marks the messages that did not fit into its queue.
            messages = [message for message in messages if message.pop("_error", None) is not None]
            if messages:
                producer.poll(1.0)

    @staticmethod
    def _one_by_one(producer: Any, topic: str, records: Records) -> Timed:
        times: list[float] = []
        clock = Clock()
        for value in records.first(ONE_BY_ONE_MAX).values:
            began_s = time.perf_counter()
            producer.produce(topic, value)
            producer.flush(ANSWER_S)
            times.append(time.perf_counter() - began_s)
        return clock.stop(len(times), times)
