"""A fingerprint of a state: states with equal fingerprints behave the same, so only one needs to be explored further.

Everything that hangs on an object counts, also what callbacks have closed over. Left out are times (names that end in
`_ms`), because the explorer has none.
"""

from __future__ import annotations

import hashlib
from collections import deque
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from google.protobuf.message import Message

_LEFT_OUT = {"_handlers", "_cluster_hints", "cluster_hints"}


def fingerprint(value: Any) -> bytes:
    """Return a 16-byte digest of a value and all values that it refers to."""
    out: list[bytes] = []
    _freeze(value, out, {})
    return hashlib.blake2b(b"\0".join(out), digest_size=16).digest()


def _freeze(value: Any, out: list[bytes], seen: dict[int, int]) -> None:
    if value is None or isinstance(value, int | str | bool | float):
        out.append(repr(value).encode())
    elif isinstance(value, bytes | memoryview | bytearray):
        out.append(bytes(value))
    elif isinstance(value, Message):
        out.append(value.SerializeToString(deterministic=True))
    elif isinstance(value, type):
        out.append(value.__qualname__.encode())
    elif id(value) in seen:
        out.append(b"@%d" % seen[id(value)])
    else:
        seen[id(value)] = len(seen)
        _freeze_object(value, out, seen)


def _freeze_object(value: Any, out: list[bytes], seen: dict[int, int]) -> None:
    out.append(type(value).__qualname__.encode())
    if isinstance(value, list | tuple | deque):
        for one in value:
            _freeze(one, out, seen)
    elif isinstance(value, dict):
        for key, one in value.items():
            _freeze(key, out, seen)
            _freeze(one, out, seen)
    elif isinstance(value, set | frozenset):
        out.extend(sorted(repr(one).encode() for one in value))
    elif isinstance(value, MethodType | BuiltinMethodType):
        out.append(value.__name__.encode())
        _freeze(value.__self__, out, seen)
    elif isinstance(value, FunctionType):
        out.append(value.__qualname__.encode())
        for cell in value.__closure__ or ():
            _freeze(cell.cell_contents, out, seen)
    else:
        for name, one in _attributes(value):
            if not name.endswith("_ms") and name not in _LEFT_OUT:
                out.append(name.encode())
                _freeze(one, out, seen)
    out.append(b";")


def _attributes(value: Any) -> list[tuple[str, Any]]:
    found = list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        found += [(name, getattr(value, name)) for name in names if hasattr(value, name) and name != "__dict__"]
    return found
