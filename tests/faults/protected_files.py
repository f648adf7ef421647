"""Secret files that are replaced while processes read them."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, content: bytes) -> None:
    """Let a file that only its owner may read have this content, all at once."""
    new = path.with_name(f".{path.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.replace(path)
