from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.core.swim_world import CLUSTER, member

from tidelog_broker.core.membership.gossip_messages import (
    PAYLOAD_BYTES_MAX,
    Ack,
    Body,
    DatagramWriter,
    MalformedGossipError,
    Nack,
    Ping,
    PingRequest,
    check_member,
    decode,
)
from tidelog_broker.core.membership.members import Address, Member, MemberState
from tidelog_broker.core.placement.placement import WEIGHT_MAX, Role
from tidelog_proto import gossip_pb2 as pb

BODIES: list[Body | None] = [Ping(7, "n1"), Ping(2**32 - 1), PingRequest(3, "n1"), Ack(4), Nack(5), None]
FULL = member(
    3,
    refutation=2**32 - 1,
    state=MemberState.SUSPECT,
    zone="é" * 100,
    roles=Role.PERSISTENCE,
    weight=WEIGHT_MAX,
    gossip=Address("2001:db8::1", 65535),
)


def writer(body: Body | None = None) -> DatagramWriter:
    return DatagramWriter(
        cluster_id=CLUSTER, sender="n0", incarnation=2**64 - 1, counter=2**64 - 1, digest=2**64 - 1, body=body
    )


@pytest.mark.parametrize("body", BODIES)
def test_datagrams_round_trip(body: Body | None) -> None:
    making = writer(body)
    assert making.add(FULL)
    assert not making.add(member(3))
    assert "n3" in making
    for state in MemberState:
        assert making.add(member(10 + state, state=state))
    got = decode(making.finish())
    assert (got.cluster_id, got.sender, got.body) == (CLUSTER, "n0", body)
    assert got.incarnation == got.counter == got.digest == 2**64 - 1
    assert got.members == (FULL, *(member(10 + state, state=state) for state in MemberState))


def test_a_repeated_record_is_decoded_once() -> None:
    making = writer()
    assert making.add(FULL)
    payload = making.finish()
    assert decode(payload).members[0] is decode(payload).members[0]


def test_datagram_is_filled_up_to_its_limit() -> None:
    making = writer(Ping(1))
    added = 0
    while making.add(member(1_000 + added)):
        added += 1
    payload = making.finish()
    assert added > 10
    assert PAYLOAD_BYTES_MAX - 100 < len(payload) <= PAYLOAD_BYTES_MAX
    assert len(decode(payload).members) == added


def test_names_of_maximum_length_leave_room_for_a_record() -> None:
    making = DatagramWriter(
        cluster_id=CLUSTER, sender="s" * 128, incarnation=1, counter=1, digest=1, body=PingRequest(2**32 - 1, "t" * 128)
    )
    assert making.add(
        member(
            refutation=2**32 - 1,
            node_id="n" * 128,
            host="h" * 255,
            zone="z" * 200,
            port=65535,
            gossip=Address("1111:2222:3333:4444:5555:6666:7777:8888", 65535),
        )
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": ""},
        {"node_id": "x" * 129},
        {"node_id": "a\nb"},
        {"host": ""},
        {"host": "é" * 128},
        {"zone": "x" * 201},
        {"incarnation": 0},
        {"incarnation": 2**64},
        {"refutation": -1},
        {"port": 0},
        {"port": 2**16},
        {"gossip": Address("localhost", 1)},
        {"gossip": Address("0.0.0.0", 1)},
        {"gossip": Address("127.0.0.1", 0)},
        {"weight": 0},
        {"weight": WEIGHT_MAX + 1},
        {"roles": Role(0)},
    ],
)
def test_invalid_records_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_member(member(1, **changes))
    check_member(member(1))


def message(**changes: Any) -> pb.Gossip:
    good = pb.Gossip.FromString(writer().finish())
    for name, value in changes.items():
        setattr(good, name, value)
    return good


def with_record(**changes: Any) -> pb.Gossip:
    making = writer()
    making.add(member(1))
    good = pb.Gossip.FromString(making.finish())
    for name, value in changes.items():
        setattr(good.members[0], name, value)
    return good


@pytest.mark.parametrize(
    "bad",
    [
        message(cluster_id=b"c" * 15),
        message(sender=""),
        message(sender="x" * 129),
        message(incarnation=0),
        message(counter=0),
        pb.Gossip.FromString(writer().finish() + pb.Gossip(ping=pb.GossipPing()).SerializeToString()),
        pb.Gossip.FromString(
            writer().finish() + pb.Gossip(ping=pb.GossipPing(sequence=1, target="\n")).SerializeToString()
        ),
        pb.Gossip.FromString(
            writer().finish() + pb.Gossip(ping_request=pb.GossipPingRequest(sequence=1)).SerializeToString()
        ),
        with_record(state=0),
        with_record(state=9),
        with_record(roles=0),
        with_record(roles=4),
        with_record(weight=0),
        with_record(gossip_host="example.org"),
        with_record(port=70_000),
        with_record(zone="x" * 300),
    ],
    ids=lambda bad: str(bad).replace("\n", " ")[-60:],
)
def test_datagrams_with_a_field_out_of_range_are_rejected(bad: pb.Gossip) -> None:
    with pytest.raises(MalformedGossipError):
        decode(bad.SerializeToString())


def test_valid_variants_of_the_cases_above_are_accepted() -> None:
    assert decode(message().SerializeToString()).members == ()
    assert decode(with_record().SerializeToString()).members == (member(1),)


def test_length_is_checked_first() -> None:
    with pytest.raises(MalformedGossipError, match="may have at most"):
        decode(bytes(PAYLOAD_BYTES_MAX + 1))


@given(st.binary(max_size=PAYLOAD_BYTES_MAX))
def test_random_bytes_are_decoded_or_rejected(payload: bytes) -> None:
    with pytest.raises(MalformedGossipError):
        decode(payload)


@given(st.data())
def test_damaged_datagrams_are_decoded_or_rejected(data: st.DataObject) -> None:
    making = writer(PingRequest(9, "n1"))
    for index in range(3):
        making.add(member(index))
    bad = bytearray(making.finish())
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = decode(bytes(bad))
    except MalformedGossipError:
        return
    for record in got.members:
        assert isinstance(record, Member)
        check_member(record)
