from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.security.tickets import SKEW_MS, TICKET_BYTES_MAX, TICKET_MS, Tickets
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ANN = pb.Caller(principal="ann", roles=["etl"], identity="key/a", expires_us=7)
NOW_US = 1_000_000
SECRET, NEWER, CLUSTER = b"s" * 32, b"n" * 32, b"c" * 16


def of_cluster(*secrets: bytes, cluster_id: bytes = CLUSTER) -> Tickets:
    tickets = Tickets(b"r" * 32)
    tickets.use(secrets, cluster_id)
    return tickets


def why(tickets: Tickets, ticket: bytes, *, holder: str = "gate", now_us: int = NOW_US) -> str:
    with pytest.raises(ProtocolError) as refused:
        tickets.read(ticket, holder=holder, now_us=now_us)
    assert refused.value.code == pb.TICKET_REFUSED
    assert refused.value.retriable
    assert refused.value.definite
    return refused.value.message


def test_any_node_of_the_cluster_verifies_a_ticket_for_a_minute() -> None:
    ticket = of_cluster(SECRET).signed(ANN, holder="gate", now_us=NOW_US)
    shown = of_cluster(SECRET).read(ticket, holder="gate", now_us=NOW_US)
    assert shown.caller == ANN
    ends_us = NOW_US + (TICKET_MS + SKEW_MS) * 1000
    assert shown.ends_us == ends_us
    assert of_cluster(SECRET).read(ticket, holder="gate", now_us=ends_us - 1).caller == ANN
    assert "has expired" in why(of_cluster(SECRET), ticket, now_us=ends_us)


def test_ticket_of_another_holder_or_cluster_is_refused() -> None:
    ticket = of_cluster(SECRET).signed(ANN, holder="gate", now_us=NOW_US)
    assert "another principal" in why(of_cluster(SECRET), ticket, holder="thief")
    for others in (of_cluster(NEWER), of_cluster(SECRET, cluster_id=b"d" * 16), Tickets(SECRET)):
        assert "not signed by a node of this cluster" in why(others, ticket)


@pytest.mark.parametrize("holder", ["gate", "gateway2", "Gateway", "ateway", "gateway ", ""])
def test_ticket_presented_by_a_principal_with_a_similar_name_is_refused(holder: str) -> None:
    ticket = of_cluster(SECRET).signed(ANN, holder="gateway", now_us=NOW_US)
    assert "another principal" in why(of_cluster(SECRET), ticket, holder=holder)
    assert of_cluster(SECRET).read(ticket, holder="gateway", now_us=NOW_US).caller == ANN


def test_secrets_are_rotated_without_downtime() -> None:
    old, between, new = of_cluster(SECRET), of_cluster(NEWER, SECRET), of_cluster(NEWER)
    before, after = (tickets.signed(ANN, holder="gate", now_us=NOW_US) for tickets in (old, between))
    assert between.read(before, holder="gate", now_us=NOW_US).caller == ANN
    assert new.read(after, holder="gate", now_us=NOW_US).caller == ANN
    assert "not signed" in why(new, before)


def test_rotated_secrets_apply_immediately() -> None:
    secrets = [SECRET]
    tickets = Tickets(b"r" * 32)
    tickets.use(secrets, CLUSTER)
    before = tickets.signed(ANN, holder="gate", now_us=NOW_US)
    secrets.insert(0, NEWER)
    assert tickets.read(before, holder="gate", now_us=NOW_US).caller == ANN
    assert of_cluster(NEWER).read(tickets.signed(ANN, holder="gate", now_us=NOW_US), holder="gate", now_us=NOW_US)
    secrets.remove(SECRET)
    assert "not signed" in why(tickets, before)


def test_ticket_that_would_outlive_its_secret_is_refused() -> None:
    tickets = of_cluster(SECRET)
    early = tickets.signed(ANN, holder="gate", now_us=NOW_US + SKEW_MS * 1000)
    assert tickets.read(early, holder="gate", now_us=NOW_US).caller == ANN, (
        "issued by a node with a clock that is ahead"
    )
    later = tickets.signed(ANN, holder="gate", now_us=NOW_US + 2 * SKEW_MS * 1000)
    assert "more than the maximum of" in why(tickets, later)


@given(at=st.integers(0, 200), bit=st.integers(0, 7))
def test_every_flipped_bit_of_a_ticket_is_detected(at: int, bit: int) -> None:
    tickets = of_cluster(SECRET)
    ticket = bytearray(tickets.signed(ANN, holder="gate", now_us=NOW_US))
    ticket[at % len(ticket)] ^= 1 << bit
    assert "not signed by a node of this cluster" in why(tickets, bytes(ticket))


@given(st.binary(max_size=100))
def test_garbage_is_not_a_ticket(garbage: bytes) -> None:
    assert "not signed by a node of this cluster" in why(of_cluster(SECRET), garbage)


def test_ticket_of_maximum_length_is_verified() -> None:
    tickets = of_cluster(SECRET)

    def signed(role_chars: int) -> bytes:
        caller = pb.Caller(principal="ann", roles=["x" * role_chars])
        return tickets.signed(caller, holder="gate", now_us=NOW_US)

    beside = len(signed(TICKET_BYTES_MAX // 2)) - TICKET_BYTES_MAX // 2
    longest, longer = signed(TICKET_BYTES_MAX - beside), signed(TICKET_BYTES_MAX - beside + 1)
    assert (len(longest), len(longer)) == (TICKET_BYTES_MAX, TICKET_BYTES_MAX + 1)
    assert tickets.read(longest, holder="gate", now_us=NOW_US).caller.principal == "ann"
    assert "not signed by a node of this cluster" in why(tickets, longer)


def test_oversized_ticket_is_rejected_without_verification() -> None:
    caller = pb.Caller(principal="ann", roles=["x" * TICKET_BYTES_MAX])
    tickets = of_cluster(SECRET)
    assert "not signed by a node of this cluster" in why(tickets, tickets.signed(caller, holder="gate", now_us=NOW_US))
