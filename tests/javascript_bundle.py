"""Write the JavaScript client as one file for `/ui/client.js`, and its types for `/ui/client.d.ts`:
`python -m tests.javascript_bundle`.

The modules of `clients/javascript/src` are put one after the other, each after those that it imports; imports between
them are left out, and the names that `index.js` exports are exported at the end. So a name at the top of a module is
unique among all of them, and an import has no other form than `import { names } from "./module.js";`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "clients" / "javascript" / "src"
BUNDLE: Final = ROOT / "gateway" / "tidelog_gateway" / "ui" / "static" / "client.js"
TYPES_SOURCE: Final = SOURCES / "index.d.ts"
TYPES: Final = BUNDLE.with_name("client.d.ts")
ENTRY: Final = "index.js"

_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_REEXPORT: Final = re.compile(r'^export \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:class|function|const)\b)", re.MULTILINE)
_LEFT: Final = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)

NOTE: Final = "// Made of clients/javascript/src: python -m tests.javascript_bundle\n"


def render() -> str:
    """Return the bundle."""
    entry = (SOURCES / ENTRY).read_text()
    public = sorted(name.strip() for names, _ in _REEXPORT.findall(entry) for name in names.split(",") if name.strip())
    order: list[str] = []
    for _, module in _REEXPORT.findall(entry):
        _visit(module, order, ())
    parts = [NOTE, *(_stripped(module) for module in order), f"export {{ {', '.join(public)} }};\n"]
    return "\n".join(parts)


def _visit(module: str, order: list[str], above: tuple[str, ...]) -> None:
    """Add a module to `order`, after those that it imports."""
    if module in above:
        raise ValueError(f"modules import each other: {' -> '.join([*above, module])}")
    if module in order:
        return
    for imported in _IMPORT.findall((SOURCES / module).read_text()):
        _visit(imported, order, (*above, module))
    order.append(module)


def _stripped(module: str) -> str:
    """Return a module's text without its imports and exports."""
    text = _EXPORT.sub("", _IMPORT.sub("", (SOURCES / module).read_text()))
    if left := _LEFT.search(text):
        raise ValueError(f"{module}: the bundle has no form for {left[0]!r}")
    return re.sub(r"\n{3,}", "\n\n", text)


def render_types() -> str:
    """Return the types of the bundle."""
    return NOTE + TYPES_SOURCE.read_text()


if __name__ == "__main__":
    BUNDLE.write_text(render())
    TYPES.write_text(render_types())
