"""Accounts of this node's callers: one for each principal and one for each client address.

A connection is metered in its principal's account, or in its address's if clients are not authenticated; with
authentication, addresses have accounts too, which only count connections. An account with a debt outlives its
connections, so that reconnecting does not clear the debt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from tidelog_broker.core.security.quota_rules import ADDRESS_PREFIX, Limits, Quotas
from tidelog_broker.core.security.session import Session
from tidelog_broker.wire.quota_account import Account, Client
from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.errors import ProtocolError

IDLE_MAX: Final = 4_096
"""Maximum number of accounts that have a debt but no connections; beyond it, those idle for longest are forgotten."""

COUNTED_MAX: Final = 100
"""Maximum number of callers with a metric of their own: the first that were throttled; the others share one."""
OTHERS: Final = "(others)"
SHARED_MAX: Final = 4_096
"""Maximum number of gateway callers that are remembered between requests, in addition to those with requests in
progress."""
LOOKED_AT: Final = 4
"""Number of remembered accounts that are checked for removal whenever one is added, the least recently used first."""

_Key = tuple[str, str]


class Accounts:
    """Creates, finds and forgets the accounts of one node.

    Args:
        now_s: a monotonic clock, in seconds.
        in_flight_bytes: limit of a caller's request bytes in progress if no quota sets it.
        count: called with the caller's name, or `OTHERS`, and the seconds that it was throttled.
    """

    def __init__(
        self,
        quotas: Quotas,
        now_s: Callable[[], float],
        *,
        in_flight_bytes: float = math.inf,
        count: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self._quotas = quotas
        self._now_s = now_s
        self._in_flight_bytes = in_flight_bytes
        self._count = count
        self._counted_names: set[str] = set()
        self._by_key: dict[_Key, Account] = {}
        self._of_client: dict[Client, list[_Key]] = {}
        self._idle: dict[_Key, None] = {}
        """Accounts without connections that had a debt when last checked, idle for longest first."""
        self._gateway_accounts: dict[_Key, None] = {}
        """Accounts of gateway callers, the most recently used at the end."""
        self._roles: dict[str, set[str]] = {}
        """The roles that each principal with an account has presented."""
        self._changes = quotas.changes
        self._is_released = False

    def __iter__(self) -> Iterator[Account]:
        """Yield all accounts."""
        yield from list(self._by_key.values())

    def of(self, kind: str, name: str) -> Account | None:
        """Return the account of a "principal" or an "address"; None if it has no account."""
        return self._by_key.get((kind, name))

    def join(self, client: Client, host: str, session: Session | None) -> Account:
        """Count a client's connection; return the account that meters its requests.

        Raises:
            ProtocolError: QUOTA_EXCEEDED, the principal or the address has reached its connection limit.
        """
        *others, (key, account) = self._accounts_of(counted_address(host), session)
        joined: list[_Key] = []
        try:
            for key_of_other, other in others:
                other.join(client, meters=False)
                joined.append(key_of_other)
            account.join(client, meters=True)
        except ProtocolError:
            self._leave(client, joined)
            for unused, found in (*others, (key, account)):
                if unused in self._by_key and not found.clients and unused not in self._gateway_accounts:
                    self._keep_indebted(unused, found)
            raise
        self._of_client[client] = [*joined, key]
        return account

    def _accounts_of(self, address: str, session: Session | None) -> list[tuple[_Key, Account]]:
        """Return the accounts that count a connection; the last one meters its requests.

        Connections of an administrator do not count at their address: only a quota of its own name limits it.
        """
        found: list[tuple[_Key, Account]] = []
        if session is None or not self._quotas.is_admin(session.principal):
            limits_of = partial(self._quotas.of_address, address)
            found.append(
                (("address", address), self._account(("address", address), ADDRESS_PREFIX + address, limits_of))
            )
        if session is not None:
            found.append(self._of_principal(session))
        return found

    def _of_principal(self, session: Session) -> tuple[_Key, Account]:
        key = ("principal", session.principal)
        roles = self._roles.setdefault(session.principal, set())
        account = self._account(key, session.principal, partial(self._quotas.of_principal, session.principal, roles))
        if not session.roles <= roles:
            roles |= session.roles
            account.refresh()
        return key, account

    def of_caller(self, session: Session) -> Account:
        """Return the account of a caller that a gateway acts for; it is also that of the caller's own connections."""
        key, account = self._of_principal(session)
        self._gateway_accounts.pop(key, None)
        self._gateway_accounts[key] = None
        if len(self._gateway_accounts) > SHARED_MAX:
            for longest in list(islice(self._gateway_accounts, LOOKED_AT)):
                found = self._by_key[longest]
                if not found.users and longest != key:
                    del self._gateway_accounts[longest]
                    if not found.clients:
                        self._keep_indebted(longest, found)
        return account

    def leave(self, client: Client) -> None:
        """Remove a closed connection."""
        self._leave(client, self._of_client.pop(client, []))

    def refresh(self) -> None:
        """Apply changed quotas to all accounts."""
        if self._changes != self._quotas.changes and not self._is_released:
            self._changes = self._quotas.changes
            for account in self:
                account.refresh()

    def release(self) -> None:
        """Lift all limits: the node is stopping, and no client should wait for it."""
        self._is_released = True
        for account in self:
            account.release()

    def _account(self, key: _Key, name: str, limits_of: Callable[[], Limits]) -> Account:
        account = self._by_key.get(key)
        if account is None:
            account = self._by_key[key] = Account(
                name,
                limits_of,
                self._now_s,
                in_flight_bytes=self._in_flight_bytes,
                count=partial(self._waited, name),
            )
        self._idle.pop(key, None)
        return account

    def _waited(self, name: str, waited_s: float) -> None:
        if name not in self._counted_names and len(self._counted_names) >= COUNTED_MAX:
            name = OTHERS
        self._counted_names.add(name)
        self._count(name, waited_s)

    def _leave(self, client: Client, keys: list[_Key]) -> None:
        for key in keys:
            account = self._by_key[key]
            account.leave(client)
            if not account.clients and key not in self._gateway_accounts:
                self._keep_indebted(key, account)

    def _keep_indebted(self, key: _Key, account: Account) -> None:
        """Keep an account without connections while it has a debt, within `IDLE_MAX`."""
        self._idle[key] = None
        for idle in list(islice(self._idle, LOOKED_AT)):
            if len(self._idle) > IDLE_MAX or not self._by_key[idle].owes:
                self._forget(idle)
        if key in self._idle and not account.owes:
            self._forget(key)

    def _forget(self, key: _Key) -> None:
        del self._by_key[key], self._idle[key]
        if key[0] == "principal":
            del self._roles[key[1]]
