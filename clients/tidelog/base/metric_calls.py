"""Calls of a client's `ClientMetrics`, made only where somebody counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from tidelog.metrics import ClientMetrics

_log: Final = logging.getLogger("tidelog.client")


class MetricCalls:
    """Calls somebody's metrics; what they raise is logged once and goes no further."""

    def __init__(self, metrics: ClientMetrics) -> None:
        self.metrics = metrics
        self._failed = False

    def tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the metrics."""
        try:
            call(*arguments)
        except Exception:  # noqa: BLE001 - whatever it is, it is not to end a producer or a consumer
            if not self._failed:
                self._failed = True
                _log.exception(
                    "the metrics of this client raise errors in %r: what they count is incomplete from now on, "
                    "publishing and reading go on; this is said once",
                    call,
                )

    def reconnected(self, address: tuple[str, int]) -> None:
        """The connection to a node stands again."""
        host, port = address
        self.tell(self.metrics.reconnected, f"{host}:{port}")

    def throttled(self, address: tuple[str, int], delay_s: float) -> None:
        """A node delays this client by so many seconds more; metrics of before there were quotas are not told."""
        host, port = address
        call: Callable[..., None] | None = getattr(self.metrics, "throttled", None)
        if call is not None:
            self.tell(call, f"{host}:{port}", delay_s)
