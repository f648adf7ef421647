"""`make docs`: build the pages as a site with mkdocs, and check it.

The navigation is read from the tables of `docs/README.md`, so that each page is listed once. Pages outside `docs/` are
copied into the site, and the reference of the Python API is made of its docstrings (tests/api_reference.py); links to
other files of the repository become plain text. The build fails when a link or an
anchor does not resolve, or when a page would load something from another host.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests import api_reference

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "docs-source"
SITE = ROOT / "build" / "docs"
OUTSIDE = {"README.md": "quick-start.md", "SECURITY.md": "threat-model.md", "CHANGELOG.md": "changelog.md"}
"""Page at the top of the repository -> its name in the site."""

FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
SHELF = re.compile(r"^## (.+)$", re.MULTILINE)
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'> ]+)""", re.IGNORECASE)
STYLE = re.compile(
    r"""<link\b(?=[^>]*rel=["']?(?:stylesheet|preload|preconnect))[^>]*href=["']?((?:https?:)?//[^"'> ]+)"""
)


def site_links(text: str, page: Path) -> str:
    """Return the text of a page, with its links as the site needs them.

    Args:
        text: Markdown.
        page: The page's path in the repository, to which its links are relative.
    """

    def link(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        linked = Path(os.path.normpath(page.parent / path))
        if linked.name in OUTSIDE and linked.parent == Path():
            linked = Path("docs") / OUTSIDE[linked.name]
        if linked.parts[0] != "docs":
            return label
        home = Path("docs") if page.parent == Path() else page.parent
        return f"{image}[{label}]({Path(os.path.relpath(linked, home)).as_posix()}{hash_sign}{anchor})"

    pieces, at = [], 0
    for fence in FENCED.finditer(text):
        pieces += [LINK.sub(link, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, LINK.sub(link, text[at:])])


def shelves(index: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the shelves of the index, each with the titles and paths of its pages."""
    parts = SHELF.split(index)[1:]
    return [
        (title, [(label, target) for _, label, target in LINK.findall(rows) if target.endswith(".md")])
        for title, rows in zip(parts[::2], parts[1::2], strict=True)
    ]


def navigation(index: str) -> str:
    """Return the navigation in the syntax of mkdocs.yml."""
    lines = ["nav:", "  - Tidelog: README.md"]
    for title, pages in shelves(index):
        lines.append(f'  - "{title}":')
        lines += [f'    - "{label}": {target}' for label, target in pages]
        if title == "Reference":
            lines += api_reference.navigation()
    return "\n".join(lines) + "\n"


def write_sources() -> None:
    """Write the pages, the pictures and the configuration of the site into `build/docs-source`."""
    shutil.rmtree(BUILD, ignore_errors=True)
    pages = BUILD / "pages"
    sources = {path: path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*")) if path.is_file()}
    sources |= {ROOT / name: Path(to) for name, to in OUTSIDE.items()}
    for source, to in sources.items():
        (pages / to).parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            (pages / to).write_text(site_links(source.read_text(), source.relative_to(ROOT)))
        else:
            shutil.copy(source, pages / to)
    api_reference.write(pages)
    config = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\nsite_dir: {SITE}\n"
    (BUILD / "mkdocs.yml").write_text(config + navigation((pages / "README.md").read_text()))


def loaded_in(html: str) -> list[str]:
    """Return the addresses of scripts, pictures and styles that a page loads from another host."""
    return [url for pattern in (LOADED, STYLE) for url in pattern.findall(html)]


def loaded_from_elsewhere() -> list[str]:
    """Return what the pages of the site load from another host, each with its page."""
    pages = sorted(SITE.rglob("*.html"))
    return [f"{page.relative_to(SITE)}: {url}" for page in pages for url in loaded_in(page.read_text())]


def main() -> int:
    write_sources()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--config-file"]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    built = subprocess.run([*command, str(BUILD / "mkdocs.yml")], env=environ, check=False)
    if built.returncode:
        return built.returncode
    if found := loaded_from_elsewhere():
        print("these pages load something from another host:", *found, sep="\n", file=sys.stderr)
        return 1
    print(f"{SITE / 'index.html'}: {len(list(SITE.rglob('*.html')))} pages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
