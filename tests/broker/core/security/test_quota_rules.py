"""Resolution and validation of quotas."""

from __future__ import annotations

import pytest

from tidelog_broker.core.security.quota_rules import Limits, Quotas, canonical, check_quota
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.client_address import counted_address
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import UNLIMITED


def holding(**by_subject: int) -> Quotas:
    return quotas_of({subject: pb.Quota(requests=requests) for subject, requests in by_subject.items()})


def quotas_of(by_subject: dict[str, pb.Quota]) -> Quotas:
    quotas = Quotas()
    for number, (subject, quota) in enumerate(by_subject.items()):
        quota.quota_id, quota.subject = str(number), subject
        quotas.put(quota)
    return quotas


def test_without_quotas_everything_is_unlimited() -> None:
    assert Quotas().of_principal("ann", ["etl"]) == Quotas().of_address("10.0.0.1/32") == Limits()
    assert not Limits().has_rates


def test_most_specific_quota_determines_each_limit() -> None:
    quotas = quotas_of(
        {
            "default": pb.Quota(requests=1, topics=1, connections=1),
            "*": pb.Quota(requests=2, topics=2, connections=2),
            "role:etl": pb.Quota(requests=3, topics=3),
            "role:batch": pb.Quota(requests=9),
            "ann": pb.Quota(requests=4),
        }
    )
    assert quotas.of_principal("ann", ["etl"])[2:] == (4, 2, None, 3, None, None)
    assert quotas.of_principal("ben", ["etl", "batch"]).requests == 9, "of several roles the largest"
    assert quotas.of_principal("cleo").requests == 2
    assert quotas.of_address("10.0.0.1/32").requests == 1
    assert quotas.of_principal("ann").has_rates


def test_specific_quota_can_lift_a_general_one() -> None:
    quotas = holding(**{"*": 5, "ann": UNLIMITED})
    assert quotas.of_principal("ann").requests is None
    assert quotas.of_principal("ben").requests == 5


def test_smallest_containing_network_applies() -> None:
    quotas = holding(
        **{"address:10.0.0.0/8": 1, "address:10.1.0.0/16": 2, "address:2001:db8::/48": 3, "address:0.0.0.0/0": 4}
    )
    for host, requests in (
        ("10.2.0.1", 1),
        ("10.1.2.3", 2),
        ("::ffff:10.1.2.3", 2),
        ("2001:db8:0:7::1", 3),
        ("2001:db9::1", None),
        ("192.0.2.1", 4),
        ("no address", None),
    ):
        assert quotas.of_address(counted_address(host)).requests == requests, host
    assert counted_address("2001:db8:0:7::1") == counted_address("2001:db8:0:7:8::%eth0"), "a /64 counts as one"


def test_only_quotas_of_its_own_name_apply_to_an_administrator() -> None:
    quotas = Quotas(["admin"])
    for subject in ("default", "*", "role:etl"):
        quotas.put(pb.Quota(quota_id=subject, subject=subject, requests=1))
    assert quotas.of_principal("admin", ["etl"]) == Limits()
    quotas.put(pb.Quota(quota_id="own", subject="admin", requests=7))
    assert quotas.of_principal("admin", ["etl"]).requests == 7


def test_unknown_subjects_of_a_newer_release_are_ignored() -> None:
    quotas = holding(**{"address:the moon": 1, "address:10.0.0.0/8": 2, "of another kind": 3})
    assert quotas.of_address("10.0.0.1/32").requests == 2
    assert quotas.of_address("") == Limits()


def test_dropped_quota_does_not_apply() -> None:
    quotas = holding(ann=1)
    changes = quotas.changes
    quotas.drop("none")
    assert quotas.changes == changes
    quotas.drop("0")
    assert quotas.changes > changes
    assert quotas.of_principal("ann") == Limits()
    assert quotas.of_subject("ann") is None


def test_subject_has_one_canonical_form() -> None:
    assert canonical("address:2001:DB8::/48") == "address:2001:db8::/48"
    assert canonical("address:10.0.0.1") == "address:10.0.0.1/32"
    assert [canonical(subject) for subject in ("ann", "role:etl", "*", "default")] == [
        "ann",
        "role:etl",
        "*",
        "default",
    ]
    for subject in (
        "",
        "role:",
        "role:*",
        "a\n",
        "x" * 256,
        "address:ten",
        "address:10.0.0.1/8",
        "address:2001:db8::/65",
    ):
        with pytest.raises(ProtocolError) as refused:
            canonical(subject)
        assert refused.value.code == pb.INVALID_REQUEST, subject


@pytest.mark.parametrize(
    "quota",
    [
        pb.Quota(subject="ann"),
        pb.Quota(subject="ann", produce_bytes=0),
        pb.Quota(subject="ann", consume_bytes=4095),
        pb.Quota(subject="ann", in_flight_bytes=1),
        pb.Quota(subject="ann", requests=0),
        pb.Quota(subject="address:10.0.0.0/8", topics=1),
        pb.Quota(subject="*", connections=0),
        pb.Quota(subject="address:::/0", connections=0),
    ],
)
def test_invalid_quotas_are_refused(quota: pb.Quota) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_quota(quota, is_admin=False)
    assert refused.value.code == pb.INVALID_REQUEST


def test_countable_limits_may_be_zero() -> None:
    check_quota(pb.Quota(subject="ann", connections=0, topics=0, partitions=0), is_admin=False)
    check_quota(pb.Quota(subject="address:10.0.0.0/8", connections=0, requests=1, produce_bytes=4096), is_admin=False)


def test_administrator_may_be_limited_but_not_locked_out() -> None:
    least = pb.Quota(subject="root", connections=1, requests=1, in_flight_bytes=4096, topics=0, partitions=0, groups=0)
    check_quota(least, is_admin=True)
    least.connections = 0
    with pytest.raises(ProtocolError, match="connections must be >= 1 for 'root', got 0"):
        check_quota(least, is_admin=True)
