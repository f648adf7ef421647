"""One client's connections: at most one per node address, opened on demand and reopened after a back-off.

Concurrent callers share one connection attempt. After a failure the next attempt is delayed, so that a failed node
costs its clients a few packets per second. A failed attempt fails all calls that wait for it; each caller has its own
deadline and decides whether to retry. An address whose last connection or attempt failed is `doubtful` until an attempt
succeeds, and callers with a choice try other addresses first.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from tidelog.auth.authentication_exchange import NO_CREDENTIALS, Authenticator
from tidelog.base.backoff import Backoff
from tidelog.base.metric_calls import MetricCalls
from tidelog.cluster.connection import Address, Connection, connect
from tidelog.cluster.liveness import Liveness
from tidelog.errors import ClosedError, ConnectionLostError, InvalidRequestError, NodeUnreachableError, TidelogError
from tidelog.tls import Tls, Trust, tls_of
from tidelog_proto.limits import CLIENT_ID_BYTES_MAX
from tidelog_proto.process.busy_poll import POLL_US_MAX
from tidelog_proto.version import CLIENT_SOFTWARE

T = TypeVar("T")

DEFAULT_PORT: Final = 7400
CONNECT_TIMEOUT_S_MAX: Final = 10.0
_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Identity:
    """Parameters of a client's connections: HELLO fields, authentication, TLS, connect time-out and busy polling."""

    client_id: str
    software: str
    connect_timeout_s: float
    idle_poll_us: int = 0
    authenticator: Authenticator = NO_CREDENTIALS
    tls: Callable[[], ssl.SSLContext | None] = lambda: None


def identity_of(
    client_id: str,
    request_timeout_s: float,
    idle_poll_us: int,
    authenticator: Authenticator,
    tls: Tls | bool | None,
) -> Identity:
    """Check the arguments of `Client` and return the parameters of its connections.

    Raises:
        InvalidRequestError: an argument is invalid.
    """
    if request_timeout_s <= 0:
        raise InvalidRequestError(f"request_timeout_s must be > 0, got {request_timeout_s:g}")
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise InvalidRequestError(
            f"client_id must have at most {CLIENT_ID_BYTES_MAX} bytes, got {len(client_id.encode())}: "
            f"{client_id[:80]!r}"
        )
    if not 0 <= idle_poll_us <= POLL_US_MAX:
        raise InvalidRequestError(f"idle_poll_us must be 0 to {POLL_US_MAX}, got {idle_poll_us}")
    timeout_s = min(request_timeout_s, CONNECT_TIMEOUT_S_MAX)
    return Identity(client_id, CLIENT_SOFTWARE, timeout_s, idle_poll_us, authenticator, Trust(tls_of(tls)))


class ConnectionPool:
    """Opens and shares the connections of one client, at most one for each node address.

    Args:
        metrics: counts reconnects and throttling; None: no metrics.
        bootstrap: the bootstrap addresses. A node at another address must belong to the same cluster.
        unreachable_timeout_s: maximum time for which `get` waits for a connection; the attempt itself continues. None:
            until the attempt ends. Also the time-out of probes on open connections, see `Liveness`.
    """

    def __init__(
        self,
        identity: Identity,
        metrics: MetricCalls | None = None,
        *,
        bootstrap: Iterable[Address] = (),
        unreachable_timeout_s: float | None = None,
    ) -> None:
        self._unreachable_timeout_s = unreachable_timeout_s
        self._bootstrap = frozenset(bootstrap)
        self._cluster_id = b""
        self._identity = identity
        self._metrics = metrics
        self._connections: dict[Address, Connection] = {}
        self._attempts: dict[Address, asyncio.Task[Connection]] = {}
        self._backoffs: dict[Address, Backoff] = {}
        self._retry_at: dict[Address, float] = {}
        self._doubtful: set[Address] = set()
        self._last_failures: dict[Address, str] = {}
        self._closed = False

    def now(self, address: Address) -> Connection | None:
        """Return the open connection to `address`; None if no connection is open."""
        connection = self._connections.get(address)
        return None if connection is None or connection.closed else connection

    def open_connections(self) -> list[Connection]:
        """Return the open connections."""
        return [connection for connection in self._connections.values() if not connection.closed]

    def doubtful(self, address: Address) -> bool:
        """Return whether the last connection to `address` was lost, the last attempt failed, or one is in progress."""
        return address in self._doubtful or address in self._attempts

    async def get(self, address: Address) -> Connection:
        """Return the connection to `address`, opening it if necessary.

        Raises:
            NodeUnreachableError: the attempt failed, and the next one starts after a back-off; or it takes longer than
                `unreachable_timeout_s`.
            TidelogError: as `connect`.
            ClosedError: the pool was closed.
        """
        if self._closed:
            raise ClosedError("the client is closed; create a new one")
        if (connection := self.now(address)) is not None:
            return connection
        attempt, timeout_s = self._attempt(address), self._unreachable_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await join(attempt)
        except TimeoutError as error:
            last = self._last_failures.get(address)
            hint = "is the node running?" if last is None else f"the last attempt failed: {last}"
            raise NodeUnreachableError(
                f"no connection to {address[0]}:{address[1]} within {timeout_s:g} s; {hint}"
            ) from error

    def should_give_up(self, error: TidelogError, waited_s: float) -> bool:
        """Return whether a request that failed for `waited_s` has reached the time-out for unreachable nodes.

        Only if its last error is the lack or loss of a connection, and no node with an open connection responds.
        """
        timeout_s = self._unreachable_timeout_s
        is_out_of_reach = isinstance(error, (NodeUnreachableError, ConnectionLostError)) and all(
            connection.liveness is not None and connection.liveness.is_lost for connection in self.open_connections()
        )
        return timeout_s is not None and waited_s >= timeout_s and is_out_of_reach

    def connect_later(self, address: Address) -> None:
        """Open the connection to `address` in the background, unless it is open."""
        if not self._closed and self.now(address) is None:
            self._attempt(address)

    async def close(self) -> None:
        """Close all connections and cancel attempts in progress."""
        self._closed = True
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        await asyncio.gather(*(connection.lost for connection in self._connections.values()))
        self._connections.clear()

    def _attempt(self, address: Address) -> asyncio.Task[Connection]:
        attempt = self._attempts.get(address)
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(self._connect(address), name=f"connect {address}")
            self._attempts[address] = attempt
            attempt.add_done_callback(lambda done: self._attempt_done(address, done))
        return attempt

    async def _connect(self, address: Address) -> Connection:
        backoff = self._backoffs.setdefault(address, Backoff())
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._retry_at.get(address, 0.0) - loop.time())
        identity = self._identity
        try:
            connection = await connect(
                address,
                client_id=identity.client_id,
                software=identity.software,
                timeout_s=identity.connect_timeout_s,
                idle_poll_us=identity.idle_poll_us,
                authenticator=identity.authenticator,
                tls=identity.tls(),
            )
            self._check_cluster(connection)
        except TidelogError as error:
            self._last_failures[address] = str(error)
            self._doubtful.add(address)
            self._retry_at[address] = loop.time() + backoff.next_wait_s()
            raise
        if self._unreachable_timeout_s is not None:
            connection.liveness = Liveness(connection, loop, self._unreachable_timeout_s)
        backoff.reset()
        self._doubtful.discard(address)
        self._last_failures.pop(address, None)
        if self._metrics is not None:
            connection.count_throttled = partial(self._metrics.throttled, address)
            if address in self._connections:
                self._metrics.reconnected(address)
        self._connections[address] = connection
        connection.lost.add_done_callback(lambda _: self._doubtful.add(address))
        return connection

    def _check_cluster(self, connection: Connection) -> None:
        """Remember the cluster of the bootstrap nodes; close a connection to another cluster.

        Raises:
            NodeUnreachableError: a node of another cluster answers at an address from metadata.
        """
        greeting, (host, port) = connection.greeting, connection.address
        if connection.address in self._bootstrap:
            self._cluster_id = greeting.cluster_id
        elif self._cluster_id and greeting.cluster_id != self._cluster_id:
            error = NodeUnreachableError(
                f"{host}:{port} is node {greeting.node_id!r} of another cluster, {greeting.cluster_id.hex()}; cluster "
                f"{self._cluster_id.hex()} advertises that address: set advertise_host and advertise_port of its nodes "
                "to addresses that clients can reach"
            )
            connection.close(error)
            raise error

    def _attempt_done(self, address: Address, attempt: asyncio.Task[Connection]) -> None:
        self._attempts.pop(address, None)
        if not attempt.cancelled():
            attempt.exception()  # Mark the result as retrieved, because all callers may have been cancelled.


async def join(task: asyncio.Task[T]) -> T:
    """Wait for a shared task; cancelling a waiting caller does not cancel the task.

    Raises:
        ClosedError: the task was cancelled, which only `close` does.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and current is not None and not current.cancelling():
            raise ClosedError("the client is closed; create a new one") from None
        raise


def parse_addresses(bootstrap: str | Sequence[str]) -> list[Address]:
    """Parse "host", "host:port" and "[v6]:port" into (host, port); one string may hold several, separated by commas.

    Raises:
        InvalidRequestError: an address is malformed.
    """
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses: list[Address] = []
    for part in parts:
        match = _ADDRESS.fullmatch(part.strip())
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise InvalidRequestError(
                f"invalid address {part.strip()!r}; use host:port with a port from 1 to 65535, for example "
                f"127.0.0.1:{DEFAULT_PORT}, or [::1]:{DEFAULT_PORT} for IPv6"
            )
        address = (match["v6"] or match["host"], port)
        if address not in addresses:
            addresses.append(address)
    return addresses
