"""The interface of a client's metrics: the argument `metrics` of `Client`.

Any class with these methods works, without inheritance; `tidelog.prometheus.PrometheusMetrics` is one. The methods are
called on the client's event loop (with `tidelog.sync`, in its thread), once per batch or frame and never per record;
they must be fast and must not block. One object may serve several clients. The first exception of a method is
logged, and all are ignored. Without `metrics` no work is done.
"""

from __future__ import annotations

from typing import Protocol


class ClientMetrics(Protocol):
    """Counts a client's records, failures and connections.

    Sizes are bytes of batches as sent, with headers.
    """

    def sent(self, topic: str, records: int, size_bytes: int) -> None:
        """A batch was sent for the first time."""

    def retried(self, topic: str, records: int, size_bytes: int) -> None:
        """A batch was sent again."""

    def acknowledged(self, topic: str, records: int, size_bytes: int, latency_s: float) -> None:
        """A batch was acknowledged, `latency_s` after the first of its records was accepted."""

    def failed(self, topic: str, records: int, code: str) -> None:
        """Records failed: their receipts raise an error with this code (`TidelogError.code_name`).

        Some of them may be stored nevertheless, unless the error is `definite`.
        """

    def buffered(self, topic: str, change_bytes: int) -> None:
        """The memory of accepted and undelivered records changed by `change_bytes`, which may be negative."""

    def consumed(self, topic: str, partition: int, records: int, size_bytes: int) -> None:
        """A consumer took a batch for delivery."""

    def lag(self, topic: str, partition: int, records: int | None) -> None:
        """The number of offsets between a consumer's position and the partition's last reported end.

        Nodes report the end with each batch, so the lag is unknown before the first batch and outdated while nothing
        arrives. None: the consumer was closed or no longer reads the partition.
        """

    def reconnected(self, node: str) -> None:
        """The lost connection to a node (HOST:PORT) was reopened."""

    def throttled(self, node: str, delay_s: float) -> None:
        """A node (HOST:PORT) throttles the client by `delay_s` more than reported before."""
