"""Put the version of the project into `sbom.json`, whose author reads it from `pyproject.toml` alone."""

from __future__ import annotations

import json
from pathlib import Path

from tidelog_proto.version import VERSION


def complete(path: Path) -> int:
    """Name the version of the project in a bill of materials; return how many packages it lists."""
    document = json.loads(path.read_text())
    document["metadata"]["component"]["version"] = VERSION
    path.write_text(json.dumps(document, indent=2) + "\n")
    return len(document["components"])


if __name__ == "__main__":
    print(f"sbom.json lists {complete(Path('sbom.json'))} packages of tidelog {VERSION}.")
