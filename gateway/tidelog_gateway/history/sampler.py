"""Samples the topics and this gateway at intervals, for `History`.

With several workers, the one that the parent process chooses takes the samples and sends them to the others, so that
all return the same values.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from tidelog.errors import TidelogError
from tidelog.model import TopicFigures
from tidelog_gateway.history.history import GatewayCounters, History
from tidelog_gateway.history.samples import decode, encode
from tidelog_gateway.metrics.exposition import metrics_in
from tidelog_gateway.problems import Problem
from tidelog_gateway.worker_channel.peers import Peers

log = logging.getLogger(__name__)

BUSY_SHARE: Final = 50
"""The pause after a sample is at least this many times its duration, so that sampling takes at most 2 % of the time."""
DUTY_POLL_S: Final = 1.0
"""How often a worker checks whether it takes the samples."""
PUBLISH_ROUTE: Final = "/v1/topics/{topic}/records"

AskFigures = Callable[[], Awaitable[Mapping[str, TopicFigures]]]


class Sampler:
    """Takes samples at intervals, and keeps them in a `History`.

    Args:
        ask: returns the figures of all topics, with the permissions of the gateway's own key.
        interval_s: minimum time between two samples.
        peers: the other workers; None in a gateway of one process.
    """

    def __init__(
        self, ask: AskFigures, registry: CollectorRegistry, interval_s: float, peers: Peers | None = None
    ) -> None:
        self.history = History()
        self.fault: str | None = None
        """The reason why the newest sample failed; None when it succeeded."""
        self._ask = ask
        self._registry = registry
        self._interval_s = interval_s
        self._peers = peers
        if peers is not None:
            peers.on_sample = self.receive

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            if self._peers is not None and not self._peers.duties.samples:
                await asyncio.sleep(DUTY_POLL_S)
                continue
            began_s = time.monotonic()
            await self.take()
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(self._interval_s - took_s, BUSY_SHARE * took_s, 0))

    async def take(self) -> None:
        """Take one sample, if nodes answer."""
        try:
            topics = await self._ask()
            gateway = gateway_counters(await self._metrics())
        except (TidelogError, Problem) as error:
            if self.fault is None:
                log.warning("cannot sample topics for /ui, trying again every %g s: %s", self._interval_s, error)
            self.fault = str(error)
            return
        self.fault = None
        at_ms = time.time_ns() // 1_000_000
        self.history.add(at_ms, topics, gateway)
        if self._peers is not None:
            self._peers.share(encode(at_ms, topics, gateway))

    def receive(self, sample: bytes) -> None:
        """Add a sample that another worker has taken."""
        self.fault = None
        self.history.add(*decode(sample))

    async def _metrics(self) -> Iterable[Metric]:
        return self._registry.collect() if self._peers is None else metrics_in(await self._peers.merged())


def gateway_counters(families: Iterable[Metric]) -> GatewayCounters:
    """Compute the counters of a gateway from its metrics."""
    requests = published = delivered = 0.0
    below: dict[float, float] = {}
    for family in families:
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
    return GatewayCounters(requests, published, delivered, below)
