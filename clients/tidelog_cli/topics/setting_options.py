"""The options of `tidelog topic create|alter` for settings, generated from the table of settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from tidelog_cli.base.quantities import duration_ms, duration_or_none_ms, duration_or_none_s, size_bytes
from tidelog_proto.topic_settings import ALTERABLE, TOPIC_SETTINGS, TopicSetting, Unit

INDEX_PREFIX: Final = "index_"
"""Prefix of the settings that `--index` sets."""
_INDEXED: Final = tuple(name.removeprefix(INDEX_PREFIX) for name in ALTERABLE if name.startswith(INDEX_PREFIX))


def with_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each setting that can be set, passed as `**settings`.

    A setting whose option is not given on the command line is omitted from `settings`.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    names = [name for name in ALTERABLE if not name.startswith(INDEX_PREFIX)]
    options = [_parameter(name, _option(TOPIC_SETTINGS[name])) for name in names] + [_parameter("index", _INDEX)]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        settings = {name: value for name in names if (value := given.pop(name)) is not None}
        settings |= _indexes(given.pop("index"))
        command(**given, **settings)

    position = sum(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in own)
    called.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own[:position], *options, *own[position:]]
    )
    return called


def option_names(setting: TopicSetting) -> list[str]:
    """Return the names of a setting's option; a duration also has the name of the setting, which includes the unit."""
    full = "--" + setting.name.replace("_", "-")
    if setting.name.startswith(INDEX_PREFIX):
        return ["--index"]
    if setting.unit in {Unit.MILLISECONDS, Unit.SECONDS}:
        return [setting.option or full.removesuffix(f"-{setting.unit}"), full]
    return [setting.option or full]


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(setting: TopicSetting) -> Any:
    names = option_names(setting)
    text = setting.help + (f" Examples: {setting.examples}." if setting.examples else "")
    if setting.kind is bool:
        return Annotated[bool | None, typer.Option(f"{names[0]}/--no{names[0][1:]}", help=text)]
    if setting.others:
        return Annotated[str | None, typer.Option(*names, metavar="|".join([*setting.choices, "NAME"]), help=text)]
    if setting.kind is str:
        choices: Any = StrEnum("Choices", {choice: choice for choice in setting.choices})  # type: ignore[misc]
        return Annotated[choices | None, typer.Option(*names, help=text)]
    parser = {
        Unit.MILLISECONDS: duration_ms if setting.minimum else duration_or_none_ms,
        Unit.SECONDS: duration_or_none_s,
        Unit.BYTES: size_bytes,
    }.get(setting.unit)
    if parser is not None:
        metavar = "SIZE" if setting.unit is Unit.BYTES else "TIME"
        return Annotated[int | None, typer.Option(*names, parser=parser, metavar=metavar, help=text)]
    return Annotated[int | None, typer.Option(*names, min=setting.minimum, max=setting.maximum, help=text)]


_INDEX: Final = Annotated[
    str | None,
    typer.Option(
        "--index", metavar="KINDS", help=f"Indexes to keep: {', '.join(_INDEXED)}, several with commas, or none."
    ),
]


def _indexes(text: str | None) -> dict[str, bool]:
    """Return the settings that `--index` sets; empty if it is not given.

    Raises:
        typer.BadParameter: a name is unknown.
    """
    if text is None:
        return {}
    names = {part.strip() for part in text.split(",")}
    if names != {"none"} and not names <= {*_INDEXED}:
        raise typer.BadParameter(f"must be 'key', 'tag', 'key,tag' or 'none', got {text!r}", param_hint="--index")
    return {INDEX_PREFIX + name: name in names for name in _INDEXED}
