"""Files of secrets, as their owner keeps them."""

from __future__ import annotations

from pathlib import Path


def keep_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read."""
    path.touch(mode=0o600)
    path.write_text(text)
