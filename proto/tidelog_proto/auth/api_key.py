"""Format of API keys: `tlk_ID_SECRET`, with an id of 80 random bits and a secret of 256."""

from __future__ import annotations

import base64
import re
import secrets
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

ID_BYTES: Final = 10
"""Random bytes of an id: 16 characters of base32."""
SECRET_BYTES: Final = 32

KEY_PREFIX: Final = "tlk_"
_KEY: Final = re.compile(r"tlk_([a-z2-7]{16})_([A-Za-z0-9_-]{43})", re.ASCII)


class Key(NamedTuple):
    """The two parts of a key."""

    key_id: str
    secret: str

    @property
    def text(self) -> str:
        """The key as one string."""
        return f"{KEY_PREFIX}{self.key_id}_{self.secret}"


def new_id() -> str:
    """Return a random id."""
    return base64.b32encode(secrets.token_bytes(ID_BYTES)).decode().lower()


def new_key() -> Key:
    """Return a random key."""
    return Key(new_id(), base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).decode().rstrip("="))


def parse_key(text: str) -> Key:
    """Parse a key.

    Raises:
        ProtocolError: UNAUTHENTICATED; the message does not contain the text.
    """
    match = _KEY.fullmatch(text)
    if match is None:
        raise ProtocolError(
            pb.UNAUTHENTICATED, f"not an API key: expected the form {KEY_PREFIX}ID_SECRET; copy the whole key"
        )
    return Key(match[1], match[2])
