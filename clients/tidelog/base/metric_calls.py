"""Calls of the user's `ClientMetrics`; the first error is logged, and none is raised."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from tidelog.metrics import ClientMetrics

_log: Final = logging.getLogger("tidelog.client")


class MetricCalls:
    """Calls the user's metrics; the first error is logged, and all are suppressed."""

    def __init__(self, metrics: ClientMetrics) -> None:
        self.metrics = metrics
        self._failed = False

    def call(self, method: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the metrics object."""
        try:
            method(*arguments)
        except Exception:  # noqa: BLE001 - an error in metrics must not stop a producer or a consumer
            if not self._failed:
                self._failed = True
                _log.exception(
                    "%r of the client's metrics raised an error: metrics are incomplete from now on; producers and "
                    "consumers continue; further errors are not logged",
                    method,
                )

    def reconnected(self, address: tuple[str, int]) -> None:
        """Count a connection that was established again."""
        host, port = address
        self.call(self.metrics.reconnected, f"{host}:{port}")

    def throttled(self, address: tuple[str, int], delay_s: float) -> None:
        """Count the seconds by which a node delays this client; `throttled` is optional in the metrics object."""
        host, port = address
        throttled: Callable[..., None] | None = getattr(self.metrics, "throttled", None)
        if throttled is not None:
            self.call(throttled, f"{host}:{port}", delay_s)
