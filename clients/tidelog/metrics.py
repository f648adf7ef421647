"""What a client tells of itself to whoever counts: the argument `metrics` of `Client`.

A class with these methods is enough, it inherits nothing; `tidelog.prometheus.PrometheusMetrics` is one. They are
called in the client's event loop (with `tidelog.sync` in its thread), once for a batch or a frame and never for a
record, so they should be quick and must not block. One object may serve several clients. What a method raises is logged
once and changes nothing else. Without `metrics` nothing of this is done at all.
"""

from __future__ import annotations

from typing import Protocol


class ClientMetrics(Protocol):
    """Counts what producers, consumers and connections do. Sizes are bytes of batches as they travel, with headers."""

    def sent(self, topic: str, records: int, size_bytes: int) -> None:
        """A batch was sent for the first time."""

    def retried(self, topic: str, records: int, size_bytes: int) -> None:
        """A batch was sent once more."""

    def acknowledged(self, topic: str, records: int, size_bytes: int, latency_s: float) -> None:
        """A batch was acknowledged, `latency_s` seconds after the producer had accepted the oldest of its records."""

    def failed(self, topic: str, records: int, code: str) -> None:
        """Records were given up: their receipts raise an error of this code (`TidelogError.code_name`).

        Some of them may be stored all the same; the error's `definite` says.
        """

    def buffered(self, topic: str, change_bytes: int) -> None:
        """The memory of what producers have accepted and not delivered grew by so many bytes, or shrank: below zero."""

    def consumed(self, topic: str, partition: int, records: int, size_bytes: int) -> None:
        """A consumer took a batch, to hand it out."""

    def lag(self, topic: str, partition: int, records: int | None) -> None:
        """So many offsets lie between what a consumer took and the partition's end, as far as the consumer was told.

        Nodes tell with each batch, so this is not known before the first, and is behind while nothing arrives. None:
        the consumer was closed, or reads the partition no more, and has no lag in it.
        """

    def reconnected(self, node: str) -> None:
        """The connection to a node (HOST:PORT) that had been lost stands again."""

    def throttled(self, node: str, delay_s: float) -> None:
        """A node (HOST:PORT) holds the client to its quota, for so many seconds more than it has said before."""
