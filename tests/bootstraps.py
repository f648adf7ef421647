"""Bootstrap files as the command writes them and the node reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.base.bootstrap import Bootstrap, Founder
from tidelog_cli.cluster.founding_files import bootstrap_document, write_bootstrap


def make_bootstrap(name: str, nodes: Sequence[Founder], *, cluster_id: bytes | None = None) -> Bootstrap:
    """Return the bootstrap of a new cluster; its id is made up unless given."""
    document = bootstrap_document(name, [node.model_dump(mode="json") for node in nodes])
    if cluster_id is not None:
        document["cluster_id"] = cluster_id.hex()
    return Bootstrap.model_validate_json(json.dumps(document))


def save(bootstrap: Bootstrap, path: Path) -> None:
    """Write its file."""
    write_bootstrap(path, bootstrap.model_dump(mode="json"), replace=True)
