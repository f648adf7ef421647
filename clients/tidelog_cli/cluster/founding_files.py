"""The two files that every founder of a cluster needs: the bootstrap file and the secret.

    DIR/cluster.json   the bootstrap file: the cluster's id, its name and its nodes
    DIR/secret         the shared secret of the nodes; only readable by its owner

The bootstrap file's format is defined by the node (`tidelog node --bootstrap`), which validates the file; it is written
here because this command works without the node's package.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BOOTSTRAP: Final = "cluster.json"
SECRET: Final = "secret"  # noqa: S105 - the name of its file
_SECRET_MODE: Final = 0o600

Document = dict[str, Any]


def bootstrap_document(name: str, nodes: Sequence[Mapping[str, Any]]) -> Document:
    """Return the content of the bootstrap file of a new cluster, with a random id."""
    return {"format_version": 1, "cluster_id": secrets.token_hex(16), "name": name, "nodes": [*map(dict, nodes)]}


def write_secret(path: Path, *, replace: bool) -> None:
    """Write a new secret of 32 random bytes in hex digits, with mode 600.

    Raises:
        FileExistsError: the file exists, and `replace` is not set.
        OSError: the file cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL), _SECRET_MODE)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32) + "\n")


def write_bootstrap(path: Path, document: Document, *, replace: bool) -> None:
    """Write a bootstrap file; replacement is atomic.

    Raises:
        FileExistsError: the file exists, and `replace` is not set.
        OSError: the file cannot be written.
    """
    text = json.dumps(document, indent=2) + "\n"
    if replace:
        unnamed = path.with_name(path.name + ".new")
        unnamed.write_text(text, "utf-8")
        unnamed.rename(path)
        return
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise
