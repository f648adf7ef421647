"""The network between nodes: messages get lost, come twice, late and out of order; links are cut one way or both.

A message is serialized when it is sent and parsed when it arrives, as on a real connection, so that nodes do not share
objects. Whether it arrives is decided at the time of arrival: a cut that begins meanwhile loses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from crc32c import crc32c
from tests.simulation.clock import Clock
from tests.simulation.payload import is_sound

from tidelog_broker.core.replication.effects import PeerMessage
from tidelog_broker.core.replication.ports import Batch
from tidelog_proto.batch.header import unpack_header

RARE_DELAY = 100
OLD_MESSAGES = 400


class Receiver(Protocol):
    """Receiver of messages."""

    def deliver(self, sender: str, message: PeerMessage, batches: Sequence[Batch]) -> None: ...


class Network:
    """See the module. Nodes are addressed by id; a message for an unknown id is lost."""

    def __init__(self, clock: Clock, *, loss: float, duplication: float, delay_ms: float, fifo: bool) -> None:
        self._clock = clock
        self.loss = loss
        self.duplication = duplication
        self.delay_ms = delay_ms
        self.fifo = fifo
        self.receiver: Callable[[str], Receiver | None] = lambda node_id: None
        self._cut: set[tuple[str, str]] = set()
        self._connections: dict[tuple[str, str], int] = {}
        self._last_arrival_us: dict[tuple[str, str], int] = {}
        self._holds: dict[tuple[str, str], tuple[type[PeerMessage], ...]] = {}
        self._held: dict[tuple[str, str], list[tuple[type[PeerMessage], bytes, list[bytes]]]] = {}
        self._old: deque[tuple[str, str, type[PeerMessage], bytes, list[bytes]]] = deque(maxlen=OLD_MESSAGES)

    # --------------------------------------------------------------------------------------- faults

    def cut(self, sender: str, receiver: str) -> None:
        """Let nothing through from `sender` to `receiver`."""
        self._cut.add((sender, receiver))

    def mend(self, sender: str, receiver: str) -> None:
        """Let everything through again."""
        self._cut.discard((sender, receiver))

    def calm(self) -> None:
        """Let everything through everywhere, soon and once."""
        self._cut.clear()
        self.let_go()
        self.loss = self.duplication = 0.0
        self.delay_ms = min(self.delay_ms, 1.0)

    def hold(self, sender: str, receiver: str, *kinds: type[PeerMessage]) -> None:
        """Keep all messages of some kinds on a link from now on."""
        self._holds[sender, receiver] = kinds

    def release(self, sender: str, receiver: str, *, hold_on: bool = False) -> None:
        """Deliver the messages held on a link, also if all others are lost; `hold_on`: keep holding later ones."""
        if not hold_on:
            self._holds.pop((sender, receiver), None)
        for kind, raw, batches in self._held.get((sender, receiver), ()):
            self._clock.after(20, partial(self._deliver, (sender, receiver), kind, raw, batches))

    def let_go(self) -> None:
        """Stop holding messages; held messages are lost."""
        self._holds.clear()
        self._held.clear()

    def reset(self, one: str, other: str) -> None:
        """Break the connection between two nodes: messages in flight are lost."""
        for link in ((one, other), (other, one)):
            self._connections[link] = self._connections.get(link, 0) + 1

    def reconnect(self, one: str, other: str) -> None:
        """Break the connection between two nodes: a slow message on it does not delay messages on the new one."""
        self.reset(one, other)
        for link in ((one, other), (other, one)):
            self._last_arrival_us.pop(link, None)

    def reaches(self, sender: str, receiver: str) -> bool:
        """Whether a message would get through now."""
        return (sender, receiver) not in self._cut

    # --------------------------------------------------------------------------------------- messages

    def send(self, sender: str, to: str, message: PeerMessage, batches: Sequence[memoryview]) -> None:
        """Send a message; it arrives later, perhaps, perhaps twice."""
        random = self._clock.random
        raw = message.SerializeToString()
        copies = [bytes(batch) for batch in batches]
        self._old.append((sender, to, type(message), raw, copies))
        if self.loss and random.random() < self.loss:
            return
        times = 2 if self.duplication and random.random() < self.duplication else 1
        for _ in range(times):
            self._put(sender, to, type(message), raw, copies)

    def repeat_old(self, count: int) -> None:
        """Let some of the newest messages arrive again, or for the first time."""
        for old in self._clock.random.sample(self._old, min(count, len(self._old))):
            self._put(*old)

    def _put(self, sender: str, to: str, kind: type[PeerMessage], raw: bytes, batches: list[bytes]) -> None:
        link = (sender, to)
        if kind in self._holds.get(link, ()):
            self._held.setdefault(link, []).append((kind, raw, batches))
            return
        connection = self._connections.get(link, 0)
        delay_us = self.delay_us()
        if self.fifo:
            arrival_us = max(self._clock.now_us + delay_us, self._last_arrival_us.get(link, 0) + 1)
            self._last_arrival_us[link] = arrival_us
            delay_us = arrival_us - self._clock.now_us
        self._clock.after(delay_us, lambda: self._arrive(link, connection, kind, raw, batches))

    def delay_us(self) -> int:
        """Draw how long a message takes."""
        random = self._clock.random
        mean_us = self.delay_ms * 1000
        if random.random() < 0.01:
            mean_us *= RARE_DELAY
        return 20 + int(min(random.expovariate(1.0), 8.0) * mean_us)

    def _arrive(
        self, link: tuple[str, str], connection: int, kind: type[PeerMessage], raw: bytes, batches: list[bytes]
    ) -> None:
        if link not in self._cut and self._connections.get(link, 0) == connection:
            self._deliver(link, kind, raw, batches)

    def _deliver(self, link: tuple[str, str], kind: type[PeerMessage], raw: bytes, batches: list[bytes]) -> None:
        receiver = self.receiver(link[1])
        if receiver is None:
            return
        message = kind.FromString(raw)
        self._clock.note("deliver", link[0], link[1], message, checksum=crc32c(raw))
        if all(map(is_sound, batches)):
            taken = [Batch(unpack_header(data), memoryview(data)) for data in batches]
            receiver.deliver(link[0], message, taken)
