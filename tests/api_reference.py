"""The reference of the Python API, made of signatures and docstrings: pages of the site of `make docs`.

    python -m tests.api_reference FOLDER

A page for each public module, with the names that `tests/public_api.py` lists. Nothing is committed: a page is what the
installed code says. Sections of docstrings become lists.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tests.public_api import BEHIND, MADE, WHOLE, is_ours, names_of

import tidelog
from tidelog.base.internal import is_internal

FOLDER: Final = "reference"
SECTION: Final = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
ENTRY: Final = re.compile(r"^ {4}([\w*, .`]+): (.*)$")
CODE: Final = re.compile(r"(`[^`]*`)")


class _Bare:
    """An annotation as it is written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def pages() -> dict[str, str]:
    """Return module -> its page."""
    made = {name: list(_page_of(importlib.import_module(name), None)) for name in WHOLE}
    for name, names in BEHIND.items():
        made[name] = list(_page_of(importlib.import_module(name), names))
    return {name: "\n".join(lines) + "\n" for name, lines in made.items()}


def navigation() -> list[str]:
    """Return the lines of the navigation, below the shelf of references."""
    return ["    - Python API:", *(f"      - {name}: {FOLDER}/{name}.md" for name in (*WHOLE, *BEHIND))]


def write(folder: Path) -> None:
    """Write the pages into a folder of the site."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / FOLDER / f"{name}.md").write_text(text)


def markdown(docstring: str) -> Iterator[str]:
    """Yield the lines of a docstring as Markdown: sections become lists, indented code becomes a block."""
    is_listed = is_code = is_fenced = False
    for line in inspect.cleandoc(docstring).splitlines():
        is_fence = line.startswith("```")
        if is_fence or is_fenced:
            is_fenced ^= is_fence
            yield line if line != "```" or not is_fenced else "```text"
        elif section := SECTION.match(line):
            if is_code:
                yield "```"
            is_listed, is_code = True, False
            yield from ("", f"**{section[1]}**", "")
        elif is_listed and (entry := ENTRY.match(line)):
            yield f"- `{entry[1].strip('`')}`: {escaped(entry[2])}"
        elif is_listed and line.startswith("    "):
            yield f"    {escaped(line.strip())}"
        elif line.startswith("    "):
            if not is_code:
                yield from ("", "```python")
            is_code = True
            yield line[4:]
            continue
        else:
            is_listed = is_listed and not line
            if is_code and line:
                yield from ("```", "")
            is_code = is_code and not line
            yield escaped(line)
    if is_code:
        yield "```"


def escaped(text: str) -> str:
    """Return text whose angle brackets and asterisks are not markup; code stays."""
    parts = CODE.split(text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>*\[\]])", r"\\\1", part) for part in parts)


def _page_of(module: ModuleType, names: tuple[str, ...] | None) -> Iterator[str]:
    yield f"# {module.__name__}"
    yield ""
    if names is None:
        yield from markdown(module.__doc__ or "")
    for name in names or names_of(module):
        thing = getattr(module, name)
        if isinstance(thing, ModuleType):
            continue
        is_twin = module.__name__ != "tidelog.sync" or getattr(tidelog, name, None) is not thing
        yield from ("", f"## {name}", "")
        if not is_twin:
            yield f"As [tidelog.{name}](tidelog.md#{name.lower()})."
        elif inspect.isclass(thing):
            yield from _class(thing)
        elif inspect.isfunction(thing):
            yield from _function(name, thing)
        else:
            yield from ("```python", f"{name} = {thing}", "```")


def _class(cls: type) -> Iterator[str]:
    if typing.is_typeddict(cls):
        yield from ("```python", f"class {cls.__name__}(TypedDict)")
        yield from (f"    {field}: {_bare(kind)}" for field, kind in cls.__annotations__.items())
        yield from ("```", "", *markdown(cls.__doc__ or ""))
        return
    if is_dataclass(cls) or issubclass(cls, tuple) or cls.__name__ in MADE:
        yield from _signature(cls.__name__, cls)
    elif issubclass(cls, Exception):
        yield from ("```python", f"class {cls.__name__}({cls.__mro__[1].__name__})", "```", "")
    yield from markdown(cls.__doc__ or "")
    members = {key: each for base in reversed(cls.__mro__) if is_ours(base) for key, each in vars(base).items()}
    for key, member in sorted(members.items()):
        if key.startswith("_") or key in getattr(cls, "_fields", ()) or is_internal(member):
            continue
        function = getattr(member, "__func__", member)
        if issubclass(cls, Exception) and key not in vars(cls):
            continue
        if isinstance(member, property):
            kind = inspect.get_annotations(member.fget).get("return", "") if member.fget else ""
            yield from ("", f"### {cls.__name__}.{key}", "", "```python", f"{key}: {_bare(kind)}", "```", "")
            yield from markdown(member.__doc__ or "")
        elif inspect.isfunction(function):
            yield from ("", f"### {cls.__name__}.{key}", "")
            yield from _function(key, function, is_bound=not isinstance(member, staticmethod))


def _function(name: str, function: Any, *, is_bound: bool = False) -> Iterator[str]:
    yield from _signature(name, function, is_bound=is_bound)
    yield from markdown(function.__doc__ or "")


def _signature(name: str, thing: Any, *, is_bound: bool = False) -> Iterator[str]:
    signature = inspect.signature(thing)
    parameters = [
        each.replace(annotation=_bare(each.annotation), default=_default(each.default))
        for each in list(signature.parameters.values())[1 if is_bound else 0 :]
    ]
    start = "async " if inspect.iscoroutinefunction(thing) else ""
    returned = signature.return_annotation
    shown = signature.replace(
        parameters=parameters,
        return_annotation=inspect.Signature.empty if inspect.isclass(thing) else _bare(returned),
    )
    text = f"{start}{name}{shown}"
    if len(text) > 100:
        inside = [str(each) for each in parameters]
        kinds = [each.kind for each in parameters]
        if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
            inside.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
        end = "" if shown.return_annotation is inspect.Signature.empty else f" -> {shown.return_annotation!r}"
        text = f"{start}{name}(\n" + "".join(f"    {each},\n" for each in inside) + f"){end}"
    yield from ("```python", text, "```", "")


def _bare(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    if isinstance(annotation, typing.ForwardRef):
        return _Bare(annotation.__forward_arg__)
    return _Bare(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _default(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return default
    text = repr(default)
    return _Bare("..." if " at 0x" in text else text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
