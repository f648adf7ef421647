"""A record batch of a producer between being formed and being settled, without I/O.

Its bytes are made once, when it is first sent, and stay the same on every retry: that is how the node recognises it.
Only when it is certain that the node never stored it and never will may it get other numbers (`renumber`), and even
then the body stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from tidelog.batches import Load
from tidelog.errors import TidelogError
from tidelog_proto.batch import EncodedBatch
from tidelog_proto.header import unpack_header


class State(Enum):
    """Where a batch is."""

    WAITING = "to be sent, or sent again"
    FLYING = "sent, the answer is due"
    STORED = "acknowledged; it stays in line until those before it are settled"
    DROPPED = "given up; it stays in line until those before it are settled"


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """One batch and the loads that it carries.

    Attributes:
        loads: in the order of their records.
        encoded: what is sent.
        base_sequence: the number of its first record.
        deadline: loop time at which it is given up.
        maybe_stored: some attempt ended with an unknown outcome. Never taken back while the numbers stay.
        last_error: what the newest attempt met.
    """

    loads: Sequence[Load]
    encoded: EncodedBatch
    base_sequence: int
    deadline: float
    state: State = State.WAITING
    maybe_stored: bool = False
    last_error: TidelogError | None = None
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = self.encoded.record_count

    def renumber(self, *, producer_epoch: int, base_sequence: int) -> None:
        """Give the batch other numbers; the caller is certain that no copy of the old bytes can be stored."""
        header = unpack_header(self.encoded.header)._replace(producer_epoch=producer_epoch, base_sequence=base_sequence)
        self.encoded = replace(self.encoded, header=header.pack())
        self.base_sequence = base_sequence
        self.maybe_stored = False

    def succeed(self, base_offset: int, timestamp_us: int) -> None:
        """Give every load its offsets."""
        for load in self.loads:
            load.delivery.succeed(base_offset, timestamp_us)
            base_offset += load.count
