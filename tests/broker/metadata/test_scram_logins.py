from __future__ import annotations

import hmac

import pytest

from tidelog_broker.core.security.registry import USER, SecurityRegistry
from tidelog_broker.metadata.scram_logins import ScramLogins
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ITERATIONS, ClientSide, salted_password, verifier_of
from tidelog_proto.errors import ProtocolError

SALT = b"s" * 16


def registry_of(*names: str, secret: bytes = b"x" * 32) -> SecurityRegistry:
    registry = SecurityRegistry()
    kept = verifier_of("long enough", SALT)._asdict()
    for number, name in enumerate(names):
        user = pb.ScramUser(user_id=f"u{number}", name=name, roles=["etl"], **kept)
        registry.apply(pb.SecurityRecord(id=f"{USER}u{number}", revision=1, user=user))
    registry.apply(pb.SecurityRecord(id="secret/scram", revision=1, scram_secret=secret))
    return registry


def login(logins: ScramLogins, name: str, password: str) -> str:
    """Return who it is, if the node takes it and proves itself."""
    client = ClientSide(name, "c" * 24)
    begun = logins.begin(client.first)
    final = client.final(salted_password(password, *client.challenged(begun.challenge.scram)))
    session, proof = logins.finish(begun, final)
    client.check(proof)
    return session.principal


def test_only_the_right_password_is_accepted() -> None:
    logins = ScramLogins(registry_of("ann"))
    assert login(logins, "ann", "long enough") == "ann"
    for name, password in (("ann", "long enougH"), ("ben", "long enough")):
        with pytest.raises(ProtocolError, match="wrong, or") as refused:
            login(logins, name, password)
        assert refused.value.code == pb.UNAUTHENTICATED


def test_recorded_user_of_the_administrator_is_refused() -> None:
    registry = SecurityRegistry(["ann"])
    user = pb.ScramUser(user_id="u0", name="ann", **verifier_of("long enough", SALT)._asdict())
    registry.apply(pb.SecurityRecord(id=USER + "u0", revision=1, user=user))
    with pytest.raises(ProtocolError, match="an API key or user in the cluster's records cannot act") as refused:
        login(ScramLogins(registry), "ann", "long enough")
    assert refused.value.code == pb.UNAUTHENTICATED


def test_unknown_user_gets_the_same_salt_at_all_nodes() -> None:
    def challenge(logins: ScramLogins, name: str) -> tuple[bytes, int]:
        client = ClientSide(name, "c" * 24)
        return client.challenged(logins.begin(client.first).challenge.scram)

    nodes = [ScramLogins(registry_of("ann")) for _ in range(2)]
    assert challenge(nodes[0], "ben") == challenge(nodes[1], "ben")
    assert challenge(nodes[0], "ben")[1] == challenge(nodes[0], "ann")[1] == ITERATIONS
    others = [challenge(ScramLogins(registry_of(secret=secret)), "ben") for secret in (b"y" * 32, b"", b"")]
    assert len({challenge(nodes[0], "ben"), challenge(nodes[0], "carl"), *others}) == 5, (
        "a node without the secret makes up a challenge"
    )


def test_password_changed_during_a_login_restarts_it() -> None:
    registry = registry_of("ann")
    logins = ScramLogins(registry)
    client = ClientSide("ann", "c" * 24)
    begun = logins.begin(client.first)
    final = client.final(salted_password("long enough", *client.challenged(begun.challenge.scram)))
    registry.apply(pb.SecurityRecord(id=USER + "u0", revision=2, deleted=True))
    newer = pb.ScramUser(user_id="u1", name="ann", **verifier_of("another one", SALT)._asdict())
    registry.apply(pb.SecurityRecord(id=USER + "u1", revision=1, user=newer))
    with pytest.raises(ProtocolError):
        logins.finish(begun, final)
    assert logins.has_changed(begun)
    assert login(logins, "ann", "another one") == "ann"


def test_unknown_user_costs_as_much_as_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: each compares and signs as often."""
    logins = ScramLogins(registry_of("ann"))
    compared: list[int] = []
    compare = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(len(one))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    counts = []
    for name in ("ann", "nobody"):
        compared.clear()
        with pytest.raises(ProtocolError):
            login(logins, name, "a wrong one")
        counts.append(list(compared))
    assert counts[0] == counts[1]
    assert len(counts[0]) == 2
