from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.security.login import Login
from tidelog_broker.core.security.signed_logins import LOGIN_BYTES_MAX, LOGIN_MS, SignedLogins
from tidelog_broker.core.security.tickets import SKEW_MS, Tickets
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ServerSide, Verifier, opened

FIRST = "n,,n=ann,r=" + "c" * 24
LOGIN = Login(ServerSide(opened(FIRST), "n" * 24, Verifier(60_000, b"s" * 16, b"k" * 32, b"v" * 32)), "u1")
NOW_US = 1_000_000
SECRET, NEWER, CLUSTER = b"s" * 32, b"n" * 32, b"c" * 16


def of_cluster(*secrets: bytes) -> SignedLogins:
    logins = SignedLogins(b"r" * 32)
    logins.use(secrets, CLUSTER)
    return logins


def test_any_node_of_the_cluster_continues_a_login_for_half_a_minute() -> None:
    sealed = of_cluster(SECRET).sealed(FIRST, LOGIN, holder="gate", now_us=NOW_US)
    for logins in (of_cluster(SECRET), of_cluster(NEWER, SECRET)):
        found = logins.opened(sealed, holder="gate", now_us=NOW_US)
        assert found is not None
        assert (found.first, found.nonce, found.user_id) == (FIRST, "n" * 24, "u1")
    ends_us = NOW_US + (LOGIN_MS + SKEW_MS) * 1000
    assert of_cluster(SECRET).opened(sealed, holder="gate", now_us=ends_us - 1) is not None
    assert of_cluster(SECRET).opened(sealed, holder="gate", now_us=ends_us) is None
    assert of_cluster(SECRET).opened(sealed, holder="gate", now_us=NOW_US - 10 * SKEW_MS * 1000) is None
    assert of_cluster(SECRET).opened(sealed, holder="other", now_us=NOW_US) is None
    assert of_cluster(NEWER).opened(sealed, holder="gate", now_us=NOW_US) is None
    assert b"k" * 32 not in sealed, "the verifier of a password does not leave the node"


def test_tickets_and_logins_are_not_interchangeable() -> None:
    logins, tickets = SignedLogins(SECRET), Tickets(SECRET)
    ticket = tickets.signed(pb.Caller(principal="ann"), holder="gate", now_us=NOW_US)
    assert logins.opened(ticket, holder="gate", now_us=NOW_US) is None


@given(st.binary(max_size=100) | st.just(b"x" * (LOGIN_BYTES_MAX + 1)))
def test_garbage_is_not_a_login(sealed: bytes) -> None:
    assert SignedLogins(SECRET).opened(sealed, holder="gate", now_us=NOW_US) is None
