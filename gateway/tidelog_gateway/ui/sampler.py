"""Takes a sample of the topics and of this gateway at intervals, for `History`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from tidelog.errors import TidelogError
from tidelog.model import TopicFigures
from tidelog_gateway.ui.history import GatewayFigures, History

log = logging.getLogger(__name__)

BUSY_SHARE: Final = 50
"""A sample is followed by a pause of at least so many times what it took, so many partitions are sampled less often."""
PUBLISH_ROUTE: Final = "/v1/topics/{topic}/records"

AskFigures = Callable[[], Awaitable[Mapping[str, TopicFigures]]]


class Sampler:
    """Fills a history.

    Args:
        ask: returns the figures of all topics, as the gateway's own key may see them.
        registry: of the gateway's metrics.
        interval_s: between two samples at least.
    """

    def __init__(self, ask: AskFigures, registry: CollectorRegistry, interval_s: float) -> None:
        self.history = History()
        self.fault: str | None = None
        """Why the newest sample could not be taken; None when it was."""
        self._ask = ask
        self._registry = registry
        self._interval_s = interval_s

    async def run(self) -> None:
        """Take samples until it is cancelled."""
        while True:
            began_s = time.monotonic()
            await self.take()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(self._interval_s - took_s, BUSY_SHARE * took_s, 0))

    async def take(self) -> None:
        """Take one sample, if nodes answer."""
        try:
            topics = await self._ask()
        except TidelogError as error:
            if self.fault is None:
                log.warning("figures of topics cannot be sampled for /ui: %s", error)
            self.fault = str(error)
            return
        self.fault = None
        self.history.add(time.time_ns() // 1_000_000, topics, gateway_figures(self._registry))


def gateway_figures(registry: CollectorRegistry) -> GatewayFigures:
    """Return the counters of a gateway from its metrics."""
    requests = published = delivered = 0.0
    below: dict[float, float] = {}
    for family in registry.collect():
        for sample in family.samples:
            match sample.name:
                case "tidelog_gateway_requests_total":
                    requests += sample.value
                case "tidelog_gateway_records_published_total":
                    published += sample.value
                case "tidelog_gateway_records_delivered_total":
                    delivered += sample.value
                case "tidelog_gateway_request_seconds_bucket" if sample.labels["route"] == PUBLISH_ROUTE:
                    bound = float(sample.labels["le"])
                    below[bound] = below.get(bound, 0) + sample.value
                case _:
                    pass
    return GatewayFigures(requests, published, delivered, below)
