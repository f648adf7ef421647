"""Metadata of the distributions: the README with links that work outside the repository, and the project's addresses.

`repository` in `[tool.hatch.metadata.hooks.custom]` of pyproject.toml is the address under which people browse the
sources. With one, relative links of the README become absolute, and the metadata names the repository, documentation,
changelog and issues. Without one, relative links become plain text, because a package index has no such files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
BRANCH = "main"


def absolute_links(text: str, repository: str) -> str:
    """Return Markdown whose links resolve anywhere; those into the repository become text when its address is ""."""

    def link(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if target.startswith("#") or re.match(r"[a-z]+:", target):
            return found[0]
        if not repository:
            return label
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/{BRANCH}/{target})"

    pieces, at = [], 0
    for fence in FENCED.finditer(text):
        pieces += [LINK.sub(link, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, LINK.sub(link, text[at:])])


def addresses(repository: str) -> dict[str, str]:
    """Return the project's addresses by their well-known labels; an empty mapping without a repository."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/{BRANCH}/docs/README.md",
        "Changelog": f"{repository}/blob/{BRANCH}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def checked(repository: object) -> str:
    """Return the address without a slash at its end.

    Raises:
        ValueError: it is neither empty nor an https address without credentials.
    """
    text = str(repository).rstrip("/")
    parts = urlsplit(text)
    if text and (parts.scheme != "https" or not parts.hostname or parts.username is not None):
        raise ValueError(f"repository must be an https address without credentials, or empty, got {repository!r}")
    return text


class TidelogMetadata(MetadataHookInterface):
    """Adds `readme` and `urls` to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both."""
        repository = checked(self.config.get("repository", ""))
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, repository)}
        if urls := addresses(repository):
            metadata["urls"] = urls
