"""The callers of this node: an account for each principal, and for each address.

A connection belongs to its principal's account, or to its address's where nobody has a name; where clients have names,
addresses have accounts, too, in which only the number of connections counts. An account that owes something outlives
its connections, so that who connects anew has not paid by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from tidelog_broker.core.security.quotas import ADDRESS_PREFIX, Limits, Quotas
from tidelog_broker.core.security.session import Session
from tidelog_broker.wire.account import Account, Client
from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.errors import ProtocolError

IDLE_MAX: Final = 4_096
"""Accounts without connections that still owe something; the oldest are forgotten beyond so many."""

COUNTED_MAX: Final = 100
"""Callers that are counted by name, those that waited first; all others are counted together."""
OTHERS: Final = "(others)"
SHARED_MAX: Final = 4_096
"""Callers of gateways that are remembered between their requests, those that ask and read now beside them."""
LOOKED_AT: Final = 4
"""So many of them are looked at with each that becomes one, the oldest first."""

_Key = tuple[str, str]


class Accounts:
    """Of one node.

    Args:
        quotas: those of the cluster.
        now_s: a clock that only runs forwards, in seconds.
        in_flight_bytes: of requests of one caller that are worked on at once, where no quota says.
        count: told who has waited, and for how many seconds; of very many callers they are `OTHERS`.
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
        self._counted: set[str] = set()
        self._by_key: dict[_Key, Account] = {}
        self._of_client: dict[Client, list[_Key]] = {}
        self._idle: dict[_Key, None] = {}
        """Of these, those without connections, which have had something lately."""
        self._shared: dict[_Key, None] = {}
        """Of these, callers of gateways, who came last at the end."""
        self._roles: dict[str, set[str]] = {}
        """Of each principal that has an account, those of all that it has shown."""
        self._changes = quotas.changes
        self._is_released = False

    def __iter__(self) -> Iterator[Account]:
        """Yield all of them."""
        yield from list(self._by_key.values())

    def of(self, kind: str, name: str) -> Account | None:
        """Return the account of a "principal" or an "address"; None where it has neither connections nor debts."""
        return self._by_key.get((kind, name))

    def join(self, client: Client, host: str, session: Session | None) -> Account:
        """Count a client's connection; return the account that its requests count in.

        Raises:
            ProtocolError: QUOTA_EXCEEDED, its principal or its address has as many connections as it may.
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
                if unused in self._by_key and not found.clients and unused not in self._shared:
                    self._rest(unused, found)
            raise
        self._of_client[client] = [*joined, key]
        return account

    def _accounts_of(self, address: str, session: Session | None) -> list[tuple[_Key, Account]]:
        """Return the accounts that a connection counts in; the last one is that of its requests."""
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
        """Return the account of somebody for whom a gateway asks; it is that of his own connections, too."""
        key, account = self._of_principal(session)
        self._shared.pop(key, None)
        self._shared[key] = None
        if len(self._shared) > SHARED_MAX:
            for longest in list(islice(self._shared, LOOKED_AT)):
                found = self._by_key[longest]
                if not found.users and longest != key:
                    del self._shared[longest]
                    if not found.clients:
                        self._rest(longest, found)
        return account

    def leave(self, client: Client) -> None:
        """A connection is gone."""
        self._leave(client, self._of_client.pop(client, []))

    def refresh(self) -> None:
        """Find out what is allowed now, if quotas have changed."""
        if self._changes != self._quotas.changes and not self._is_released:
            self._changes = self._quotas.changes
            for account in self:
                account.refresh()

    def release(self) -> None:
        """Bound nobody any more: the node stops, and nobody is to wait for what will not come."""
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
        if name not in self._counted and len(self._counted) >= COUNTED_MAX:
            name = OTHERS
        self._counted.add(name)
        self._count(name, waited_s)

    def _leave(self, client: Client, keys: list[_Key]) -> None:
        for key in keys:
            account = self._by_key[key]
            account.leave(client)
            if not account.clients and key not in self._shared:
                self._rest(key, account)

    def _rest(self, key: _Key, account: Account) -> None:
        """Keep an account that nobody uses for as long as it owes something, within bounds."""
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
