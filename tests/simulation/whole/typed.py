"""A typed topic that clients change while others publish to it, and what nodes may never do with its schemas.

T1: an acknowledged batch has a registered number and its digest. T2: a number has one schema at all nodes and times.
T4: a change that would read older values wrongly is refused: a narrower type, or the id of a dropped field. Once all
nodes know the lowest number for producers, batches below it are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from tests.broker.typed import FIRST, typed_batch
from tests.proto.typed_batches import retyped
from tests.simulation.whole.network import Incoming

from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.schema.data_types import INT8, INT32, INT64
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.wire.frames import Frame

if TYPE_CHECKING:
    from tests.simulation.whole.node_process import NodeProcess
    from tests.simulation.whole.world import World

NAME = "typed"
GAP_MS = 60
ASK_MS = 1_000
Answered = Callable[[pb.Envelope, bytes], None]
SCHEMAS_MAX = 40


class TypedTopic:
    """A client that creates one typed topic, changes its schema, and publishes rows; it repeats nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.clock.random
        self._registered: dict[int, int] = {}
        """Digest by number, of all records that a node has applied."""
        self._topic_id = b""
        self._problem = "no answer"
        self._published_in_calm = self._refused_in_calm = False
        self.published = self.changed = 0

    def start(self) -> None:
        """Begin."""
        self._later()

    def _later(self) -> None:
        self._world.clock.after(int(self._random.uniform(0.2, 2) * GAP_MS * 1000), self._next)

    def _next(self) -> None:
        self._later()
        processes = [process for process in self._world.processes() if process.is_up]
        if not processes:
            return
        process, draw = self._random.choice(processes), self._random.random()
        if not self._topic_id:
            config = pb.TopicConfig(partitions=1, replication_factor=len(self._world.machines))
            self._ask(process, pb.Envelope(topic_create=pb.TopicCreate(name=NAME, config=config, schema=_FIRST)))
        elif draw < 0.3 and not self._world.calm:
            self._change(process)
        else:
            self._publish(process, wrong_digest=draw < 0.4)

    # --- schemas ---------------------------------------------------------------------------------------

    def applied(self, record: pb.SchemaRecord) -> None:
        """A node has applied the record of a schema."""
        number, digest = record.schema.number, record.schema.digest
        if self._topic_id and record.topic_id != self._topic_id:
            return  # of an earlier attempt whose outcome was unknown
        if self._registered.setdefault(number, digest) != digest:
            self._world.checks.fail("T2", f"schema {number} is {digest:08x} and {self._registered[number]:08x}")

    def _change(self, process: NodeProcess) -> None:
        schemas = process.node.broker.schemas.of(self._topic_id)
        number = schemas.newest_number
        if not 0 < number < SCHEMAS_MAX:
            return
        bad = self._random.random() < 0.25
        schema = self._bad(schemas.schema(number)) if bad else self._good(schemas.schema(number))
        change = pb.SchemaChange(topic=NAME, schema=message_of_schema(schema), expected_number=number)
        if not bad and self._random.random() < 0.3:
            # Never lower: the check of the lowest number relies on that.
            config = process.node.broker.topics.config_of(self._topic_id)
            change.floor = self._random.randint(number + 1 if config is None else config.schema_floor, number + 1)
        self._ask(process, pb.Envelope(schema_change=change), bad=bad)

    def _good(self, newest: Schema) -> Schema:
        fields, next_id = newest.fields, newest.next_field_id
        if len(fields) > 2 and self._random.random() < 0.5:
            fields = fields[:-1]
        else:
            fields, next_id = (*fields, Field(next_id, f"f{next_id}", INT64)), next_id + 1
        return Schema(newest.number + 1, next_id, fields)

    def _bad(self, newest: Schema) -> Schema:
        """Return a schema with a narrower type, or with the id of a dropped field if there is one."""
        used = {field.id for field in newest.fields}
        dropped = [number for number in range(3, newest.next_field_id) if number not in used]
        if dropped and self._random.random() < 0.7:
            fields = (*newest.fields, Field(self._random.choice(dropped), "again", INT32))
        else:
            fields = (newest.fields[0], replace(newest.fields[1], type=INT8), *newest.fields[2:])
        return Schema(newest.number + 1, newest.next_field_id, fields)

    # --- rows ------------------------------------------------------------------------------------------

    def _publish(self, process: NodeProcess, *, wrong_digest: bool) -> None:
        known = [number for number in process.node.broker.schemas.of(self._topic_id) if number in self._registered]
        if not known:
            return
        number = self._random.choice([known[-1], self._random.choice(known)])
        schema = process.node.broker.schemas.of(self._topic_id).schema(number)
        data = typed_batch(schema, self._random.randrange(100))
        digest = schema.digest
        if wrong_digest:
            digest ^= 1
            data = retyped(data, schema_digest=digest)
        self.published += 1
        entry = pb.PublishEntry(topic_id=self._topic_id, partition=0, length=len(data))
        envelope = pb.Envelope(publish=pb.Publish(entries=[entry], timeout_ms=ASK_MS))
        floor = self._floor_everywhere()

        def answered(answer: pb.Envelope, _: bytes) -> None:
            for result in answer.publish_reply.results:
                self._published(result, number, digest, floor)

        self._dispatch(process, envelope, data, answered)

    def _published(self, result: pb.PublishResult, number: int, digest: int, floor: int) -> None:
        """A batch was answered; when it was sent, every node knew the lowest number `floor`, or it was 0."""
        if result.HasField("error"):
            self._refused_in_calm |= self._world.calm and result.error.code == pb.SCHEMA_MISMATCH
            return
        if self._registered.get(number) != digest:
            self._world.checks.fail("T1", f"a batch of schema {number} was stored with the digest {digest:08x}")
        if number < floor:
            self._world.checks.fail("T1", f"a batch of schema {number} was stored, and {floor} is the lowest number")
        self._published_in_calm |= self._world.calm

    def _floor_everywhere(self) -> int:
        """Return the lowest number for producers if all nodes know it, and no change is made any more; otherwise 0."""
        floors = {
            0 if config is None else config.schema_floor
            for process in self._world.processes()
            for config in [process.node.broker.topics.config_of(self._topic_id)]
        }
        return floors.pop() if self._world.calm and len(floors) == 1 and not self.unknown_somewhere() else 0

    # --- requests --------------------------------------------------------------------------------------

    def _ask(self, process: NodeProcess, envelope: pb.Envelope, *, bad: bool = False) -> None:
        def answered(answer: pb.Envelope, _: bytes) -> None:
            self._problem = answer.error.message
            if answer.HasField("topic_reply"):
                self._topic_id = answer.topic_reply.topics[0].topic_id
            elif answer.HasField("error") and answer.error.code == pb.TOPIC_EXISTS:
                found = process.node.broker.topics.find(NAME)
                self._topic_id = b"" if found is None else found.topic_id
            elif answer.HasField("schema_change_reply"):
                self.changed += 1
                if bad:
                    self._world.checks.fail("T4", f"a change that breaks a rule was made: {envelope.schema_change}")
                number, digest = answer.schema_change_reply.schema.number, answer.schema_change_reply.schema.digest
                if self._registered.get(number) != digest:
                    self._world.checks.fail("T2", f"schema {number} was answered, and is not what nodes have")

        self._dispatch(process, envelope, b"", answered)

    def _dispatch(self, process: NodeProcess, envelope: pb.Envelope, data: bytes, answered: Answered) -> None:
        connection = Incoming(process, answered, lambda _: None)
        connection.greeted = True
        request = Request(cast("Connection", connection), Frame(envelope, memoryview(bytearray(data))), 0)
        process.run(lambda: process.node.server.dispatch(request))

    def unknown_somewhere(self) -> str:
        """Return a node that does not know a registered schema; empty if all nodes know all."""
        for process in self._world.processes():
            known = process.node.broker.schemas.of(self._topic_id)
            if missing := [number for number in self._registered if number not in known]:
                return f"{process.node.node_id} does not know the schemas {missing}"
        return ""

    def unsettled(self) -> str:
        """Return what does not work yet with the typed topic; empty if all does."""
        if not self._topic_id:
            # A founder that came back under another name keeps the cluster from using new features until its removal.
            is_hindered = "has not announced its features yet" in self._problem
            return "" if is_hindered else f"the typed topic cannot be created: {self._problem}"
        if not self._published_in_calm:
            return "no row can be published"
        return self.unknown_somewhere() or ("" if self._refused_in_calm else "a wrong digest is not refused")


_FIRST = message_of_schema(FIRST)
