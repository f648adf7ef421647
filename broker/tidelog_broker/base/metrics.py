"""The node's Prometheus metrics. Each node has its own registry, so that tests can run several in a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidelog_broker.base.engine_gauges import EngineGauges
from tidelog_broker.base.node_gauges import GroupGauges, NodeGauges
from tidelog_broker.base.partition_gauges import PartitionGauges
from tidelog_proto.process.hot_path_metrics import LABEL_VALUES_MAX, OTHER, Durations, TallyCounter
from tidelog_proto.process.standard_streams import dropped_writes
from tidelog_proto.version import VERSION

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class NodeMetrics:
    """The node's counters and gauges. Names end in their unit, as Prometheus recommends."""

    def __init__(self) -> None:
        self.registry = _registry()
        counter = self._counter
        self.records_in = TallyCounter("tidelog_records_in", "Records appended", self.registry).tally()
        self.bytes_in = TallyCounter("tidelog_bytes_in", "Bytes of batches appended", self.registry).tally()
        self.bytes_out = counter("tidelog_bytes_out", "Bytes of batches sent to readers")
        self.batches_refused = counter("tidelog_batches_refused", "Batches that this node refused or failed to store")
        self.duplicates = counter("tidelog_duplicates", "Retried batches answered with their first offset")
        self.deduplicated = TallyCounter(
            "tidelog_deduplicated_records", "Records dropped because of their content", self.registry, label="topic"
        )
        self.deduplication_bytes = self._gauge(
            "tidelog_deduplication_bytes", "Bytes of memory that deduplication windows take"
        )
        self.requests = TallyCounter("tidelog_requests", "Requests by kind", self.registry, label="kind")
        self.connection_errors = counter(
            "tidelog_connection_errors",
            "Connections that this node closed with an error, such as malformed frames or no HELLO in time",
        )
        self.access_refused = counter("tidelog_access_refused", "Requests refused because no permission allows them")
        self.unauthenticated = counter("tidelog_unauthenticated", "HELLO and IDENTIFY without valid credentials")
        self.jwks_failures = counter("tidelog_jwks_failures", "Failed fetches of the keys that verify tokens (JWKS)")
        self.audit_dropped = counter("tidelog_audit_dropped", "Lines of the audit log that were not written to __audit")
        self.tls_failed = counter("tidelog_tls_failed", "Failed TLS handshakes")
        self.tls_ends = Gauge(
            "tidelog_tls_ends_timestamp_seconds",
            "Expiry of the node's certificate, its CA or its CRL, in seconds since 1970",
            ["what"],
            registry=self.registry,
        )
        self.strangers_closed = counter(
            "tidelog_strangers_closed", "Unauthenticated connections closed because a limit of connections was reached"
        )
        self.throttled_seconds = Counter(
            "tidelog_throttled_seconds",
            "Time for which connections and fetches of a caller waited because of a quota or limit",
            ["caller"],
            registry=self.registry,
        )
        self._throttled_callers: set[str] = set()
        self.declined = counter("tidelog_declined", "Requests refused because of a limit of requests in flight")
        self.stalled = counter("tidelog_stalled_clients", "Clients closed because they stopped reading or sending")
        self.peer_bytes_in = self._peer_counter("tidelog_peer_batch_bytes_in", "Bytes of batches received from a node")
        self.peer_bytes_out = self._peer_counter("tidelog_peer_batch_bytes_out", "Bytes of batches sent to a node")
        self.peer_dropped_in = self._peer_counter(
            "tidelog_peer_dropped_in", "Dropped messages of a node: no memory for the batches, or batches damaged"
        )
        self.peer_dropped_out = self._peer_counter(
            "tidelog_peer_dropped_out", "Dropped messages for a node: no connection, or its queue was full"
        )
        self.peer_connects = self._peer_counter("tidelog_peer_connects", "Connections established to a node")
        self.append_seconds = Durations(
            "tidelog_append_seconds", "Time to write (and sync) a group of batches", self.registry, bounds_s=_SECONDS
        )
        self.connections = self._gauge("tidelog_connections", "Open connections to the native port")
        self.in_flight_bytes = self._gauge(
            "tidelog_in_flight_bytes", "Bytes of requests in progress: attachments and large envelopes"
        )
        self.outgoing_bytes = self._gauge("tidelog_outgoing_bytes", "Bytes waiting to be sent to clients")
        self.ring_bytes = self._gauge("tidelog_ring_bytes", "Bytes of recent batches kept in memory")
        self.index_bytes = self._gauge(
            "tidelog_index_bytes", "Bytes of memory that the indexes of growing segments take"
        )
        self._add_scrubbing()
        self._add_lacking()
        self.clock_held = self._gauge(
            "tidelog_clock_held",
            "1 while retention by time is paused because the wall clock has jumped",
        )
        self.topics = self._gauge("tidelog_topics", "Topics of which this node stores a partition")
        self.groups = self._gauge("tidelog_groups", "Consumer groups with members that this node coordinates")
        self.members = self._gauge("tidelog_group_members", "Members of the groups that this node coordinates")
        self.members_fenced = counter(
            "tidelog_group_members_fenced", "Members fenced: their session timed out, or another process joined"
        )
        self.group_generations = counter("tidelog_group_generations", "Rebalances of groups")
        self._add_computed()

    def tls_ends_at(self, what: str, ends_s: float) -> None:
        """Set when a certificate, CA or CRL expires, in seconds since 1970."""
        self.tls_ends.labels(what).set(ends_s)

    def throttled(self, caller: str, waited_s: float) -> None:
        """Count the time for which a caller was throttled by a quota or limit."""
        if caller not in self._throttled_callers:
            if len(self._throttled_callers) >= LABEL_VALUES_MAX:
                caller = OTHER
            else:
                self._throttled_callers.add(caller)
        self.throttled_seconds.labels(caller).inc(waited_s)

    def _add_scrubbing(self) -> None:
        self.scrubbed_bytes = self._counter("tidelog_scrubbed_bytes", "Bytes of logs read by scrubbing")
        self.scrub_passes = self._counter("tidelog_scrub_passes", "Completed scrubs of all logs")
        self.scrub_damaged = self._counter("tidelog_scrub_damaged", "Damaged segments found by scrubbing")

    def _add_lacking(self) -> None:
        self.missing_epochs = self._gauge(
            "tidelog_missing_epochs", "Sealed epochs that this node should store and lacks entirely or in part"
        )
        self.missing_records = self._gauge("tidelog_missing_records", "Records of sealed epochs that this node lacks")
        self.unwritten_bytes = self._gauge(
            "tidelog_unwritten_bytes", "Bytes of topics with `flush=async` that are in memory and not yet in files"
        )
        self.unwritten_partitions = self._gauge(
            "tidelog_unwritten_partitions",
            "Partitions with `flush=async` whose new records are only in memory: the disk is full or has failed",
        )

    def _add_computed(self) -> None:
        """Add metrics that are computed at each scrape, and related counters."""
        self.epochs_begun = self._counter("tidelog_epochs_begun", "Epochs that began with this node as their owner")
        self.owner_changes = self._counter(
            "tidelog_owner_changes", "Epochs that began with this node as their owner after an epoch of another owner"
        )
        self.node = NodeGauges(self.registry, VERSION)
        self.engines = EngineGauges(self.registry)
        # Register these before `_Omitted`: collecting them sets the counts that it reads.
        self.partitions, self.group_positions = PartitionGauges(self.registry), GroupGauges(self.registry)
        self.registry.register(
            _Omitted(lambda: {"partitions": self.partitions.omitted, "group_positions": self.group_positions.omitted})
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _peer_counter(self, name: str, text: str) -> TallyCounter:
        return TallyCounter(name, text, self.registry, label="peer")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)


class _DroppedWrites(Collector):
    """Exports the number of dropped log writes of the process; all brokers of a process share its standard streams."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the current count."""
        what = "Writes to the log that were dropped because nothing read standard error or output"
        yield CounterMetricFamily("tidelog_log_dropped", what, value=dropped_writes())


class _Omitted(Collector):
    """Exports how many partitions and positions a scrape omits because of a limit.

    This collector is registered after those that omit them, so that its counts are those of the same scrape.
    """

    def __init__(self, omitted: Callable[[], Mapping[str, int]]) -> None:
        self._omitted = omitted

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the counts of this scrape."""
        what = "Partitions and positions of groups omitted from the metrics because of a limit"
        family = GaugeMetricFamily("tidelog_metrics_omitted", what, labels=["what"])
        for key, value in self._omitted().items():
            family.add_metric([key], value)
        yield family


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_DroppedWrites())
    return registry
