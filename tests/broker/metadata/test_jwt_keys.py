from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from tests.broker.issuer import Issuer

from tidelog_broker.metadata.jwt_keys import KEY_SET_BYTES_MAX, KeySet, parse_key_set

RSA = rsa.generate_private_key(65537, 2048)
RSA_JWK: dict[str, Any] = RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True)


def of(*keys: object) -> KeySet:
    return parse_key_set(json.dumps({"keys": keys}).encode())


def test_key_verifies_the_algorithms_of_its_type_and_curve() -> None:
    p384: dict[str, Any] = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True)
    keys = of(RSA_JWK | {"kid": "r"}, p384 | {"kid": "e"}, RSA_JWK | {"kid": "p", "alg": "PS256"})
    algorithms = {name: sorted(found.algorithms) for name in "rep" if (found := keys.find(name)) is not None}
    assert algorithms == {"r": ["PS256", "PS384", "PS512", "RS256", "RS384", "RS512"], "e": ["ES384"], "p": ["PS256"]}
    assert keys.find("other") is None
    assert keys.find(None) is None, "there are several"
    only = of(RSA_JWK).find(None)
    assert only is not None
    assert of(RSA_JWK).has(only.fingerprint)
    assert not of(json.loads(Issuer().document)["keys"][0]).has(only.fingerprint)


PRIVATE: dict[str, Any] = RSAAlgorithm.to_jwk(RSA, as_dict=True)
SHORT: dict[str, Any] = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
K1: dict[str, Any] = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True)
ED: dict[str, Any] = OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate().public_key(), as_dict=True)


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "o"},
        PRIVATE,
        SHORT,
        K1,
        RSA_JWK | {"use": "enc"},
        RSA_JWK | {"key_ops": ["sign"]},
        RSA_JWK | {"alg": "HS256"},
        RSA_JWK | {"alg": "none"},
        RSA_JWK | {"n": "!!"},
        RSA_JWK | {"kid": 7},
        RSA_JWK | {"key_ops": 7},
        RSA_JWK | {"use": {}},
        RSA_JWK | {"alg": ["RS256"]},
        RSA_JWK | {"e": 7},
        RSA_JWK | {"kid": "k" * 257},
        ED | {"crv": "X25519"},
        ED | {"x": "AA"},
        {"kty": ["RSA"]},
        {},
        "key",
    ],
)
def test_unusable_key_is_ignored(key: object) -> None:
    assert len(of(key, ED)) == 1
    with pytest.raises(ValueError, match="contains no public key"):
        of(key)


@pytest.mark.parametrize(
    "document",
    [b"", b"\xff", b"[]", b'{"keys":{}}', b"[" * 100_000, b" " * (KEY_SET_BYTES_MAX + 1), b'{"keys":[]}'],
)
def test_invalid_key_set_is_an_error(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"^the document (is|contains no public key)"):
        parse_key_set(document)
