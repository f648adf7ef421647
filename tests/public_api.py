"""Write the public API to `tests/public_api.txt`: `python -m tests.public_api`.

A line for each function, method, class that users make, record of fields and choice of words: the names of parameters,
their kinds and defaults. It omits types, which type checkers verify. Names marked with `@internal` are not public.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import tidelog
from tidelog.base.internal import is_internal

PAGE: Final = Path(__file__).with_suffix(".txt")

WHOLE: Final = (
    "tidelog",
    "tidelog.sync",
    "tidelog.errors",
    "tidelog.credentials",
    "tidelog.tls",
    "tidelog.prometheus",
    "tidelog.opentelemetry",
    "tidelog.testing",
)
"""Modules of which all public names count."""

BEHIND: Final = {
    "tidelog.groups.admin": ("Groups",),
    "tidelog.sync.groups": ("Groups",),
    "tidelog.security": ("AccessRule", "KeyInfo", "NewKey", "Security", "UserInfo", "Verdict"),
    "tidelog.sync.security": ("Security",),
    "tidelog.metrics": ("ClientMetrics",),
    "tidelog.client_options": ("ClientOptions",),
    "tidelog.fetch_options": ("FetchOptions",),
    "tidelog.topic_settings": ("TopicSettings",),
}
"""Types that users get from clients, and pass to them."""

CHOICES: Final = (
    "tidelog.model",
    "tidelog.groups.options",
    "tidelog.subscriptions.consumer_options",
)
"""Modules whose literals, the words that parameters and fields may have, count."""

MADE: Final = {"ApiKeyFile", "Client", "Password", "PrometheusMetrics", "Token", "TokenFile"}
"""Classes that users call, besides those of fields; all others are given to them."""


def render() -> str:
    """Return the page."""
    lines: list[str] = []
    for name in WHOLE:
        module = importlib.import_module(name)
        for public in names_of(module):
            thing = getattr(module, public)
            is_twin = name == "tidelog.sync" and getattr(tidelog, public) is not thing
            if name != "tidelog.sync" or is_twin:
                lines += _told(f"{name}.{public}", thing)
            else:
                lines.append(f"{name}.{public}: as tidelog.{public}")
    for name, names in BEHIND.items():
        for public in names:
            lines += _told(f"{name}.{public}", getattr(importlib.import_module(name), public))
    for name in CHOICES:
        for public, thing in sorted(vars(importlib.import_module(name)).items()):
            if typing.get_origin(thing) is typing.Literal:
                lines.append(f"{name}.{public}: {' | '.join(map(repr, typing.get_args(thing)))}")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module: those that it says, or those that it defines."""
    told: list[str] | None = getattr(module, "__all__", None)
    if told is not None:
        return sorted(told)
    here = (name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__)
    return sorted(name for name in here if not name.startswith("_"))


def _told(name: str, thing: Any) -> Iterator[str]:
    """Yield the lines of one name."""
    if isinstance(thing, ModuleType):
        yield f"{name}: the module {thing.__name__}"
    elif inspect.isfunction(thing):
        yield f"{name}{_signature(thing)}"
    elif not inspect.isclass(thing):
        yield name  # the name of a type
    elif issubclass(thing, Exception):
        own = [each for each in inspect.get_annotations(thing) if not each.startswith("_")]
        yield f"{name}({thing.__mro__[1].__name__}){': ' if own else ''}{', '.join(own)}"
    else:
        yield from _class(name, thing)


def _class(name: str, cls: type) -> Iterator[str]:
    if typing.is_typeddict(cls):
        yield f"{name}: {', '.join(cls.__annotations__)}"
    elif is_dataclass(cls) or issubclass(cls, tuple) or cls.__name__ in MADE:
        yield f"{name}{_signature(cls)}"
    else:
        yield name
    members = {key: each for base in reversed(cls.__mro__) if is_ours(base) for key, each in vars(base).items()}
    for key, member in sorted(members.items()):
        function = getattr(member, "__func__", member)
        if key.startswith("_") or key in getattr(cls, "_fields", ()) or is_internal(member):
            continue
        if isinstance(member, property):
            yield f"{name}.{key}: a property"
        elif inspect.isfunction(function):
            yield f"{name}.{key}{_signature(function, is_bound=not isinstance(member, staticmethod))}"


def is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in {"tidelog", "tidelog_proto"}


def _signature(thing: Any, *, is_bound: bool = False) -> str:
    """Return the parameters as they are written, without types."""
    signature = inspect.signature(thing)
    parameters = list(signature.parameters.values())[1 if is_bound else 0 :]
    bare = [
        each.replace(annotation=inspect.Parameter.empty, default=_Shown.of(each.default))
        if each.default is not inspect.Parameter.empty
        else each.replace(annotation=inspect.Parameter.empty)
        for each in parameters
    ]
    shown = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return f"{shown} async" if inspect.iscoroutinefunction(thing) else shown


class _Shown:
    """A default as it is shown: the same in every process, also where the object's own text has its address."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @classmethod
    def of(cls, default: object) -> _Shown:
        text = repr(default)
        return cls(f"<{type(default).__name__}>" if " at 0x" in text else text)


if __name__ == "__main__":
    PAGE.write_text(render())
