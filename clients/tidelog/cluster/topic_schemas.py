"""The schemas of typed topics, read from any node once: a number never changes its meaning within a topic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from tidelog.errors import BadReplyError, UnknownSchemaError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto import schema_pb2
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.row_layout import Layouts, RowLayout, row_layout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import SCHEMAS_PER_TOPIC_MAX
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_messages import schema_of_message
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.wire.frames import Frame

TOPICS_MAX: Final = 1_024
"""Maximum number of topics whose schemas are kept; those used longest ago are evicted, and read again if needed."""


def typed_number(batch: memoryview) -> int:
    """Return the number of the schema of a batch; 0 if it is not typed, or its header is damaged."""
    try:
        return unpack_header(batch, is_sent=True, typed=True).schema_id
    except ProtocolError:
        return 0


class CallAny(Protocol):
    """The type of `Router.call_any`."""

    def __call__(self, make: Callable[[], pb.Envelope], *, repeatable: bool) -> Awaitable[Frame]:
        """Send a request to any node, and return its answer."""
        ...


class TopicSchemas:
    """Keeps the schemas of topics, by topic id.

    Args:
        call_any: sends a request to any node.
    """

    def __init__(self, call_any: CallAny) -> None:
        self._call_any = call_any
        self._layouts: OrderedDict[bytes, dict[int, RowLayout]] = OrderedDict()

    def known(self, topic_id: bytes) -> Layouts:
        """Return the layouts of the known schemas of a topic, by number; empty if no schema is known."""
        layouts = self._layouts.get(topic_id)
        if layouts is None:
            return {}
        self._layouts.move_to_end(topic_id)
        return layouts

    def newest(self, topic_id: bytes) -> Schema | None:
        """Return the newest known schema of a topic; None if no schema is known."""
        layouts = self.known(topic_id)
        return layouts[max(layouts)].schema if layouts else None

    async def layout(self, topic_id: bytes, number: int) -> RowLayout:
        """Return the layout of a schema, which is read if it is not known.

        Raises:
            UnknownSchemaError: the topic has no such schema.
            TidelogError: no node answered.
        """
        known = self.known(topic_id).get(number)
        if known is None:
            await self._read(topic_id, lambda: pb.Schemas(topic_id=topic_id, numbers=[number]))
            known = self.known(topic_id).get(number)
        if known is None:
            raise UnknownSchemaError(f"the topic has no schema {number}; check that the client and the nodes agree")
        return known

    async def refresh(self, topic_id: bytes) -> Schema:
        """Read the schemas that are not known, and return the newest, confirmed by the owner of `__meta` if possible.

        Raises:
            UnknownSchemaError: the topic has no schema.
            TidelogError: no node answered.
        """
        layouts = self.known(topic_id)
        first = next((number for number in range(1, SCHEMAS_PER_TOPIC_MAX + 1) if number not in layouts), 0)
        await self._read(topic_id, lambda: pb.Schemas(topic_id=topic_id, first_number=first, confirmed=True))
        newest = self.newest(topic_id)
        if newest is None:
            raise UnknownSchemaError("the topic has no schema: it is not typed")
        return newest

    async def all(self, topic_id: bytes) -> Sequence[Schema]:
        """Return all schemas of a topic, oldest first; see `refresh`."""
        await self.refresh(topic_id)
        return [layout.schema for _, layout in sorted(self.known(topic_id).items())]

    def note(self, topic_id: bytes, message: schema_pb2.TopicSchema) -> Schema:
        """Keep a schema of a node's answer, and return it.

        Raises:
            BadReplyError: it is not a valid schema, or another one with its number is known.
        """
        try:
            schema = schema_of_message(message)
        except SchemaError as error:
            raise BadReplyError(f"a node returned a schema that this client cannot use: {error}") from error
        layouts = self._layouts.setdefault(topic_id, {})
        known = layouts.get(schema.number)
        if known is not None and known.schema != schema:
            raise BadReplyError(
                f"schema {schema.number} has the digests {known.digest:08x} and {schema.digest:08x} on different "
                "nodes; check that all nodes belong to one cluster"
            )
        if known is None:
            layouts[schema.number] = row_layout(schema)
            while len(self._layouts) > TOPICS_MAX:
                self._layouts.popitem(last=False)
        return schema

    async def _read(self, topic_id: bytes, first: Callable[[], pb.Schemas]) -> None:
        request = first()
        while True:
            frame = await self._call_any(partial(pb.Envelope, schemas=request), repeatable=True)
            reply = frame.envelope.schemas_reply
            for message in reply.schemas:
                self.note(topic_id, message)
            if reply.next_number <= max(request.first_number, 0) or request.numbers:
                return
            request = pb.Schemas(topic_id=topic_id, first_number=reply.next_number)
