"""Metrics that record their calls."""

from __future__ import annotations

from tidelog.metrics import ClientMetrics


class Counted:
    """Every call with its arguments, in order; methods in `broken` raise."""

    def __init__(self, *broken: str) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._broken = broken

    def sent(self, topic: str, records: int, size_bytes: int) -> None:
        self._break("sent")
        self.calls.append(("sent", topic, records, size_bytes))

    def retried(self, topic: str, records: int, size_bytes: int) -> None:
        self.calls.append(("retried", topic, records, size_bytes))

    def acknowledged(self, topic: str, records: int, size_bytes: int, latency_s: float) -> None:
        self.calls.append(("acknowledged", topic, records, size_bytes, latency_s))

    def failed(self, topic: str, records: int, code: str) -> None:
        self.calls.append(("failed", topic, records, code))

    def buffered(self, topic: str, change_bytes: int) -> None:
        self.calls.append(("buffered", topic, change_bytes))

    def consumed(self, topic: str, partition: int, records: int, size_bytes: int) -> None:
        self._break("consumed")
        self.calls.append(("consumed", topic, partition, records, size_bytes))

    def lag(self, topic: str, partition: int, records: int | None) -> None:
        self.calls.append(("lag", topic, partition, records))

    def reconnected(self, node: str) -> None:
        self.calls.append(("reconnected", node))

    def throttled(self, node: str, delay_s: float) -> None:
        self.calls.append(("throttled", node, delay_s))

    def _break(self, name: str) -> None:
        if name in self._broken:
            raise ZeroDivisionError

    def of(self, name: str) -> list[tuple[object, ...]]:
        """Return the arguments of the calls of one method."""
        return [call[1:] for call in self.calls if call[0] == name]


_: ClientMetrics = Counted()
