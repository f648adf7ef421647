"""SCRAM by the example of RFC 7677, between both sides, and with everything that can be wrong in it."""

from __future__ import annotations

import base64

import pytest

from tidelog_proto.auth import scram
from tidelog_proto.auth.scram import (
    ITERATIONS_MIN,
    ClientSide,
    ScramError,
    ServerSide,
    Verifier,
    client_first,
    is_verifier,
    opened,
    salted_password,
    verifier_of,
)

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FINAL = f"c=biws,r={NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram, "ITERATIONS_MIN", 4096)
    client = ClientSide("user", NONCE)
    assert client.first == f"n,,n=user,r={NONCE}"
    node = ServerSide(opened(client.first), SERVER_NONCE, verifier_of("pencil", SALT, 4096))
    assert node.first == f"r={NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.challenged(node.first) == (SALT, 4096)
    final = client.final(salted_password("pencil", SALT, 4096))
    assert final == FINAL
    signature = node.final(final)
    assert signature == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(signature)


def both(password: str = "secret", name: str = "ann") -> tuple[ClientSide, ServerSide]:
    client = ClientSide(name, "c" * 24)
    return client, ServerSide(opened(client.first), "s" * 24, verifier_of(password, b"x" * 16, ITERATIONS_MIN))


def answered(client: ClientSide, node: ServerSide, password: str) -> str:
    return client.final(salted_password(password, *client.challenged(node.first)))


@pytest.mark.parametrize("name", ["ann", "a,b=c", "\u00e4nn", "=2C", "ann lee"])
def test_both_sides_meet_whatever_the_name(name: str) -> None:
    client, node = both("p\u00e4ss w\u00f6rd", name)
    assert node.opening.name == name
    signature = node.final(answered(client, node, "pa\u0308ss w\u00f6rd"))
    assert signature is not None
    client.check(signature)
    with pytest.raises(ScramError, match="server signature is not canonical base64"):
        client.check(
            f"{signature[:-2]}{chr(ord(signature[-2]) + 1)}="
        )  # the same bytes, with an unused bit that is set


def test_a_wrong_password_and_a_node_that_knows_none() -> None:
    client, node = both()
    assert node.final(answered(client, node, "wrong")) is None
    for forged in ("v=" + base64.b64encode(b"x" * 32).decode(), "e=other-error", "", "v=AA=="):
        with pytest.raises(ScramError):
            client.check(forged)
    fresh, _ = both()
    with pytest.raises(ScramError):
        fresh.check("v=" + base64.b64encode(b"\0" * 32).decode())


def test_message_of_another_exchange_is_refused() -> None:
    client, node = both()
    said = answered(client, node, "secret")
    other = ServerSide(node.opening, "t" * 24, node.verifier)
    with pytest.raises(ScramError, match="another exchange"):
        other.final(said)
    with pytest.raises(ScramError, match="must be the client's nonce"):
        ClientSide("ann", "d" * 24).challenged(node.first)
    with pytest.raises(ScramError, match="must be the client's nonce"):
        client.challenged(f"r={'c' * 24},s={base64.b64encode(b'x' * 16).decode()},i=15000")


@pytest.mark.parametrize("iterations", [1, 4096, 14_999, 1_000_001, 999_999_999])
def test_a_client_does_not_stretch_too_little_or_too_much(iterations: int) -> None:
    client, _ = both()
    with pytest.raises(ScramError, match="iteration count"):
        client.challenged(f"r={'c' * 24}{'s' * 24},s=eHh4eA==,i={iterations}")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "n,,",
        "p=tls-exporter,,n=ann,r=" + "c" * 24,
        "n,a=other,n=ann,r=" + "c" * 24,
        "n,,n=,r=" + "c" * 24,
        "n,,n=a=b,r=" + "c" * 24,
        "n,,n=a\nb,r=" + "c" * 24,
        "n,,n=\u202eann,r=" + "c" * 24,
        "n,,n=" + "a" * 256 + ",r=" + "c" * 24,
        "n,,n=ann,r=short",
        "n,,n=ann,r=" + "c" * 5000,
        "n,,n=ann,r=" + "c" * 24 + ",m=more",
        "n,,n=" + "a" * 1_000_000 + ",r=" + "c" * 24,
    ],
)
def test_invalid_first_message_is_refused(message: str) -> None:
    with pytest.raises(ScramError):
        opened(message)


@pytest.mark.parametrize(
    "final",
    [
        "",
        FINAL[:-4],
        FINAL.replace("biws", "eSws"),
        FINAL.replace("biws", "===="),
        FINAL.replace("dHzb", "!!!!"),
        FINAL.replace("p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "p=" + "A" * 44),
        "c=biws,r=x,p=",
    ],
)
def test_invalid_final_message_is_refused(final: str) -> None:
    node = ServerSide(opened(client_first("user", NONCE)), SERVER_NONCE, verifier_of("pencil", SALT, 4096))
    with pytest.raises(ScramError):
        node.final(final)
    assert node.final(FINAL) is not None


def test_invalid_verifier_is_detected() -> None:
    good = verifier_of("secret", b"x" * 16, ITERATIONS_MIN)
    assert is_verifier(good)
    for wrong in (
        good._replace(iterations=1),
        good._replace(salt=b""),
        good._replace(stored_key=b"x"),
        Verifier(ITERATIONS_MIN, b"x" * 16, b"x" * 32, b""),
    ):
        assert not is_verifier(wrong)
    with pytest.raises(ValueError, match="1024"):
        salted_password("p" * 1025, b"x" * 16, ITERATIONS_MIN)
    assert "secret" not in repr(both()[1])
