"""Parsing and validation of a JSON Web Key Set (RFC 7517) with the public keys that sign JWTs.

A key verifies only the algorithms of its own type and curve, so that a token cannot use a public key as an HMAC secret
or a weaker algorithm than the key is meant for. Symmetric keys, private keys, encryption keys and short RSA keys are
ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

KEY_SET_BYTES_MAX: Final = 256 * 1024
SET_KEYS_MAX: Final = 100
KEY_ID_CHARS_MAX: Final = 256
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

_OF_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_OF_CURVE: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class SigningKey(NamedTuple):
    """A public key that verifies tokens.

    Attributes:
        algorithms: the JWT names of the algorithms that it verifies.
        fingerprint: 32 hex digits that identify the key.
    """

    public: PublicKey
    algorithms: frozenset[str]
    fingerprint: str


class KeySet:
    """Keys that verify tokens, by id.

    Args:
        keys: keys by the id that tokens name; "" for a key without an id.
    """

    def __init__(self, keys: Mapping[str, SigningKey]) -> None:
        self._keys = dict(keys)
        self._fingerprints = {key.fingerprint for key in keys.values()}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key_id: str | None) -> SigningKey | None:
        """Return the key with an id, or without an id the only key of the set; None if there is no such key."""
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    def has(self, fingerprint: str) -> bool:
        """Return whether the set contains a key with this fingerprint."""
        return fingerprint in self._fingerprints


def parse_key_set(document: bytes) -> KeySet:
    """Return the keys of a JWKS that can verify tokens; other entries are ignored.

    Raises:
        ValueError: it is not a JWKS, or contains no usable key.
    """
    if len(document) > KEY_SET_BYTES_MAX:
        raise ValueError(f"the document is larger than {KEY_SET_BYTES_MAX} bytes")
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError):
        raise ValueError("the document is not valid JSON") from None
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(listed, list):
        raise ValueError("the document is not a JSON Web Key Set: it has no list named keys")  # noqa: TRY004
    if len(listed) > SET_KEYS_MAX:
        raise ValueError(f"the document must have at most {SET_KEYS_MAX} keys, got {len(listed)}")
    found: dict[str, SigningKey] = {}
    for each in listed:
        try:
            key = _signing_key(each)
        except Exception:  # noqa: BLE001, S112 - an unreadable key must not affect the others
            continue
        if key is not None:
            found.setdefault(each.get("kid", ""), key)
    if not found:
        raise ValueError("the document contains no public key for RS, PS, ES or EdDSA signatures")
    return KeySet(found)


def _signing_key(jwk: Any) -> SigningKey | None:
    """Return the key of an entry of the list; None if it cannot verify tokens."""
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or "verify" not in jwk.get("key_ops", ["verify"]):
        return None
    if not isinstance(jwk.get("kid", ""), str) or len(jwk.get("kid", "")) > KEY_ID_CHARS_MAX:
        return None
    public = _public_key(jwk)
    if isinstance(public, RSAPublicKey):
        algorithms = _OF_RSA if RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX else frozenset[str]()
    elif isinstance(public, EllipticCurvePublicKey):
        algorithms = frozenset({_OF_CURVE[public.curve.name]} if public.curve.name in _OF_CURVE else ())
    else:
        algorithms = frozenset({"EdDSA"} if isinstance(public, Ed25519PublicKey | Ed448PublicKey) else ())
    if "alg" in jwk:
        algorithms &= {str(jwk["alg"])}
    if public is None or not algorithms:
        return None
    spelled = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(public, algorithms, hashlib.sha256(spelled).hexdigest()[:32])


def _public_key(jwk: dict[str, Any]) -> PublicKey | None:
    reads = {"RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk}
    read = reads.get(str(jwk.get("kty")))
    if read is None:
        return None
    key = read(jwk)
    return key if isinstance(key, RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey) else None
