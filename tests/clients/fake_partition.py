"""A partition's log in memory, with the broker's own table of producers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import stamp_owner, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.errors import ProtocolError


@dataclass
class FakePartition:
    """The stored batches, and the producers' table."""

    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    log_start: int = 0
    producers: ProducerTable = field(default_factory=ProducerTable)

    def append(self, data: bytes) -> pb.PublishResult:
        try:
            header = unpack_header(data)
            RecordBatch.parse(data)
            known = self.producers.check(header)
        except ProtocolError as error:
            return pb.PublishResult(error=error.to_message())
        if known is not None:
            return pb.PublishResult(base_offset=known.base_offset, duplicate=True)
        stamped = bytearray(data)
        stamp_owner(
            stamped,
            base_offset=self.end_offset,
            append_timestamp_us=1,
            epoch=0,
            owner_incarnation=1,
            previous_digest=0,
        )
        header = unpack_header(stamped)
        self.producers.apply(header)
        self.batches.append(bytes(stamped))
        self.end_offset = header.end_offset
        return pb.PublishResult(base_offset=header.base_offset, append_timestamp_us=7)

    def plant(self, batches: list[bytes]) -> None:
        """Store batches unchanged."""
        self.batches += batches
        self.end_offset = unpack_header(self.batches[-1]).end_offset

    def read_from(self, offset: int) -> list[bytes]:
        return [data for data in self.batches if unpack_header(data).end_offset > offset]

    def values(self) -> list[bytes | None]:
        return [value for data in self.batches for value in RecordBatch.parse(data).values()]
