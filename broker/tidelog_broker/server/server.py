"""The native port: connections, dispatch of their requests, and HELLO.

Dispatch is a table from envelope kind to handler. A handler is a plain function (for hot paths; it answers directly or
later by a callback) or a coroutine function, which runs as a task. A `ProtocolError` of a handler is the request's
answer. Any other exception is a bug: it is logged with its traceback and answered with INTERNAL, and the connection
stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.unknown_fields import UnknownFieldSet

from tidelog_broker.broker import Broker
from tidelog_broker.core.request_costs import COSTS
from tidelog_broker.server.access import AccessChecks, end_reason
from tidelog_broker.server.gateway_tickets import charge
from tidelog_broker.server.handlers import (
    cluster,
    commit,
    compaction,
    deletion,
    fetch,
    groups,
    hello,
    identify,
    metadata,
    peers,
    producers,
    publish,
    schemas,
    security,
    subscribe,
    topics,
)
from tidelog_broker.server.session_end import client_error
from tidelog_broker.wire import quota_account
from tidelog_broker.wire.caller_shares import begin_work
from tidelog_broker.wire.connection import Connection, Request
from tidelog_broker.wire.one_way import ONE_WAY_KINDS
from tidelog_broker.wire.read_turns import WORK_BYTES_PER_US, ReadTurns
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.auth.unauthenticated_limits import UnauthenticatedConnections
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PROTOCOL_VERSION
from tidelog_proto.process.log_rate_limit import RateLimitedLog
from tidelog_proto.tls.handshakes import TlsAcceptor
from tidelog_proto.tls.stream import TlsError
from tidelog_proto.version import NODE_SOFTWARE
from tidelog_proto.wire.frames import encode_frame

if TYPE_CHECKING:
    from tidelog_broker.base.request_spans import RequestSpans

log = logging.getLogger(__name__)

_ACCEPT_TURNS: Final = 3
"""Number of iterations of the event loop until an accepted socket is a connection."""

Handler = Callable[[Broker, Request], Coroutine[Any, Any, None] | None]


HANDLERS: dict[str, Handler] = {
    "hello": hello.hello,
    "metadata": metadata.metadata,
    "publish": publish.publish,
    "producer_begin": producers.begin,
    "fetch": fetch.fetch,
    "list_offsets": fetch.list_offsets,
    "compact": compaction.compact,
    "subscribe": subscribe.subscribe,
    "credit": subscribe.credit,
    "unsubscribe": subscribe.unsubscribe,
    "commit": commit.commit,
    "committed": commit.committed,
    "group_heartbeat": groups.heartbeat,
    "group_describe": groups.describe,
    "group_list": groups.list_some,
    "group_delete": groups.delete,
    "delete_records": deletion.delete_records,
    "topic_create": topics.create,
    "topic_describe": topics.describe_one,
    "topic_list": topics.list_some,
    "topic_alter": topics.alter,
    "topic_delete": topics.delete,
    "schema_change": schemas.change,
    "schemas": schemas.schemas,
    "cluster_status": cluster.cluster_status,
    "cluster_change": cluster.cluster_change,
    "security_change": security.change,
    "security_list": security.list_some,
    "access_test": security.test,
    "identify": identify.identify,
    "peer_hello": peers.hello,
    "peer_proof": peers.proof,
    "node_announce": cluster.node_announce,
    "incarnations": peers.incarnations,
}
"""Envelope kind -> handler. Kinds of answers have no handler and get UNKNOWN_KIND."""

NODES_ONLY: Final = ONE_WAY_KINDS | {"node_announce", "incarnations"}
"""Kinds that are refused from clients."""

_GREETINGS: Final = frozenset({"hello", "peer_hello", "peer_proof"})
_WHILE_STARTING: Final = _GREETINGS | {"node_announce", "incarnations"}

_NUMBERS_MAX: Final = 8
"""Maximum number of unknown envelope fields that an error names."""

_UNANSWERED: Final = frozenset({"credit"})
"""Kinds of client requests that have no answer."""

RESERVED_CONNECTIONS: Final = 64
"""Number of connections beyond `connections_max`, which limits clients, so that other nodes can still connect."""


class Server:
    """The node's native port: accepts connections, dispatches their requests to `HANDLERS`, and tracks both."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.settings = broker.settings
        self.metrics = broker.metrics
        self.budget = broker.bounds.budget
        self.slow_senders = broker.bounds.slow_senders
        self.send_budget = broker.bounds.send_budget
        self.idle_poll = broker.idle_poll
        self.read_turns = ReadTurns()
        self.connections: set[Connection] = set()
        self._strangers = UnauthenticatedConnections(self.settings.strangers_max)
        self._listener: asyncio.Server | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._deserted = asyncio.Event()
        self.access = AccessChecks(broker)
        broker.security.changed = self.security_changed
        self._seldom = RateLimitedLog(log)
        self._entrance = self._make_acceptor()
        self.spans: RequestSpans | None = None
        self._requests = {kind: self.metrics.requests.tally(kind) for kind in HANDLERS}

    async def listen(self) -> int:
        """Open the port and return its number.

        Raises:
            OSError: the port is in use, or the address does not belong to this machine.
        """
        self._listener = await self.broker.loop.create_server(
            self._protocol, self.settings.host, self.settings.port, backlog=512
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def _make_acceptor(self) -> TlsAcceptor | None:
        if not self.broker.tls.is_on:
            return None
        error = ProtocolError(
            pb.UNAUTHENTICATED,
            "this port requires TLS: pass the CA of its certificate by TIDELOG_CA_FILE, tls= or a context "
            "(on a node: tls_cert_file and tls_ca_file)",
        )
        return TlsAcceptor(
            self.broker.tls.server,
            timeout_s=self.settings.hello_timeout_ms / 1000,
            refusal=encode_frame(pb.Envelope(error=error.to_message())),
            failed=self._not_encrypted,
            turns=self.broker.bounds.turns,
        )

    def _protocol(self) -> asyncio.BaseProtocol:
        connection = Connection(self)
        if self._entrance is None:
            return connection
        stream = self._entrance.admit(connection)
        self.broker.tls.watch(stream)
        return stream

    def _not_encrypted(self, error: TlsError) -> None:
        self.metrics.tls_failed.inc()
        self._seldom.say("a TLS connection failed: %s", error)

    async def stop_listening(self) -> None:
        """Accept no new connections."""
        if self._listener is None:
            return
        # asyncio does not close sockets that it accepts while the listener is being closed; so stop accepting first.
        for listening in self._listener.sockets:
            self.broker.loop.remove_reader(listening.fileno())
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        self._listener.close()
        if self._entrance is not None:
            self._entrance.close()

    async def requests_finished(self) -> None:
        """Wait for the requests that run as tasks; no new ones begin once the node is stopping."""
        if self._working:
            await asyncio.wait(self._working)

    async def close_connections(self, deadline: float) -> None:
        """Close every connection after its answers have left, or at `deadline` (in the event loop's time)."""
        for connection in list(self.connections):
            connection.close()
        with contextlib.suppress(TimeoutError):  # Connections of clients that are slow to read are closed below.
            async with asyncio.timeout_at(deadline):
                while self.connections:
                    self._deserted.clear()
                    await self._deserted.wait()
        for connection in list(self.connections):
            connection.cut_off()

    def _count(self) -> None:
        self.broker.bounds.open_connections = len(self.connections)
        self.metrics.connections.set(len(self.connections))

    def opened(self, connection: Connection) -> None:
        """Register an accepted connection; if the limit is exceeded, an unauthenticated one is closed."""
        self.connections.add(connection)
        self._count()
        gave_way = self._strangers.came(connection, counted_address(connection.host))
        if not gave_way and len(self.connections) > self.settings.connections_max + RESERVED_CONNECTIONS:
            gave_way = self._strangers.close_oldest()
            if not gave_way:
                connection.abort(hello.too_many(self.broker))
        self.metrics.strangers_closed.inc(gave_way)

    def greeted(self, connection: Connection) -> None:
        """Record that a connection has completed HELLO."""
        self._strangers.left(connection)

    def closed(self, connection: Connection) -> None:
        """Release the state of a closed connection."""
        self.connections.discard(connection)
        self._strangers.left(connection)
        self.broker.accounts.leave(connection)
        self.broker.bounds.turns.gone(connection)
        if connection.greeted and connection.peer_id is None:
            self.broker.bounds.open_clients -= 1
        self._count()
        if not self.connections:
            self._deserted.set()

    def security_changed(self) -> None:
        """Apply changed quotas, and close connections whose identity or permission to read is no longer valid.

        Of a caller behind a gateway only the subscriptions end; the gateway's connection stays open.
        """
        self.broker.accounts.refresh()
        for connection in list(self.connections):
            session = connection.session
            if session is None:
                continue
            ended = end_reason(self.broker, session)
            if ended:
                connection.abort(ProtocolError(pb.UNAUTHENTICATED, ended))
                continue
            try:
                for pump in connection.pumps.values():
                    pump.check(session)
            except ProtocolError as error:
                connection.abort(error)

    def dispatch(self, request: Request) -> None:
        """Start processing a request, and charge its event-loop time to its caller until it is answered.

        While the unanswered requests of a caller cost one second together (`quota_account.WORK_US_MAX`), nothing more
        is read from its connections. For a gateway's caller, which shares its connection with others, further requests
        are refused.
        """
        envelope, connection = request.envelope, request.connection
        kind = envelope.WhichOneof("kind") or "unknown"
        try:
            handler, lifecycle = HANDLERS.get(kind), self.broker.lifecycle
            if (
                handler is None
                or kind in NODES_ONLY
                or not connection.greeted
                or lifecycle.starting
                or lifecycle.stopping
            ):
                handler = self._checked(kind, request)
            self._requests[kind].value += 1
            if connection.session is not None or envelope.HasField("caller") or envelope.on_behalf:
                self.access.check(kind, request)
            if envelope.on_behalf and envelope.correlation_id:
                charge(self.broker, request)
            cost = COSTS[kind]
            work_us = cost.of(envelope, len(request.attachment))
            if self.spans is not None and envelope.trace_contexts and kind not in _UNANSWERED:
                request.end_span = self.spans.begin(kind, envelope.trace_contexts).answered
            account = request.account
            if account is not None:
                begin_work(account, work_us)
            else:
                account = connection.account
                connection.work_us += work_us
                if account is not None:
                    account.work_us += work_us
                    if account.work_us >= quota_account.WORK_US_MAX:
                        account.hold(connection)
            request.work_us = work_us
            # Work that the handler does not divide into slices is charged to the caller's read turn at once.
            connection.took(WORK_BYTES_PER_US * cost.uninterrupted_us(work_us))
            work = handler(self.broker, request)
        except ProtocolError as error:
            if kind in _UNANSWERED and request.connection.greeted:
                request.drop()  # An error without a correlation id would mean that the connection ends.
            else:
                request.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - a bug in a handler must not end the connection
            self._broken(request, error)
            return
        if work is not None:
            task = self.broker.tasks.spawn(self._finish(work, request), f"{kind} of {request.connection.client_id}")
            self._working.add(task)
            task.add_done_callback(partial(self._answer_if_cancelled, work, request))

    def _answer_if_cancelled(self, work: Coroutine[Any, Any, None], request: Request, task: asyncio.Task[None]) -> None:
        """Answer a request whose task was cancelled, possibly before it began, because the node is stopping."""
        self._working.discard(task)
        has_begun = inspect.getcoroutinestate(work) != inspect.CORO_CREATED
        work.close()
        if not request.answered:
            why = "the node is stopping and has not completed this request"
            if has_begun:
                request.fail(ProtocolError(pb.TIMED_OUT, f"{why}; the outcome is unknown"))
            else:
                request.fail(ProtocolError(pb.SHUTTING_DOWN, f"{why}; retry at another node"))

    def _checked(self, kind: str, request: Request) -> Handler:
        """Return the handler of a request.

        Raises:
            ProtocolError: requests of this kind are not accepted from this connection, or not now.
        """
        if kind in NODES_ONLY and request.connection.peer_id is None:
            raise ProtocolError(pb.FORBIDDEN, f"{kind} is accepted only from nodes of the cluster")
        handler = HANDLERS.get(kind)
        if handler is None:
            if kind in ONE_WAY_KINDS:
                raise ProtocolError(pb.INVALID_REQUEST, f"{kind} has no answer; its correlation id must be 0")
            raise ProtocolError(pb.UNKNOWN_KIND, _unknown_kind(kind, request))
        if not request.connection.greeted and kind not in _GREETINGS:
            raise ProtocolError(pb.HELLO_REQUIRED, f"HELLO must be the first request of a connection, got {kind}")
        if self.broker.lifecycle.starting and kind not in _WHILE_STARTING:
            raise ProtocolError(pb.EPOCH_CHANGING, "the node is starting; retry, or use another node")
        if self.broker.lifecycle.stopping:
            raise ProtocolError(pb.SHUTTING_DOWN, "the node is stopping; retry at another node")
        return handler

    async def _finish(self, work: Coroutine[Any, Any, None], request: Request) -> None:
        try:
            await work
        except ProtocolError as error:
            request.fail(client_error(request, error))
        except Exception as error:  # noqa: BLE001 - as in dispatch
            self._broken(request, error)

    def _broken(self, request: Request, error: Exception) -> None:
        kind, client_id = request.envelope.WhichOneof("kind"), request.connection.client_id
        log.error("handling a %s request of %r failed: %r", kind, client_id, error, exc_info=error)
        if not request.answered:
            request.fail(
                ProtocolError(pb.INTERNAL, f"internal error of node {self.broker.node_id!r}; see the log of that node")
            )


def _unknown_kind(kind: str, request: Request) -> str:
    """Return the message for an unknown request kind, with its number and the versions of both sides."""
    unknown = UnknownFieldSet(request.envelope)
    numbers = [str(unknown[at].field_number) for at in range(len(unknown))]
    field = pb.Envelope.DESCRIPTOR.fields_by_name.get(kind)
    named = f"{field.number} ({kind})" if field is not None else ", ".join(numbers[:_NUMBERS_MAX]) or "that is not set"
    client = request.connection.software or "unknown, before HELLO"
    return (
        f"requests of kind {named} are not supported: the node is {NODE_SOFTWARE}, protocol {PROTOCOL_VERSION}, the "
        f"client {client}; use a client of the node's version, or a newer node"
    )
