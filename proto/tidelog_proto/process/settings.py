"""Settings of a process: defaults, then a TOML section, then environment variables, then command-line flags.

`load_settings(model, "gateway", path, overrides)` reads the table `[gateway]` of the file, overrides it with the
variables `TIDELOG_GATEWAY_…` and then with `overrides`, and validates the result once. An unknown key from any source
is an error with a suggestion, so that misspelt settings are not silently ignored.

Rejected: the sources of pydantic-settings, which validate source by source, ignore unknown variables and cannot report
the source of an invalid value. Only processes with settings import this module, because it needs pydantic, which the
client alone does not install.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_origin

from pydantic import BaseModel, ValidationError

SECTIONS: Final = ("node", "gateway")
"""Tables of a configuration file. One file may configure every process of a machine."""

_SettingsT = TypeVar("_SettingsT", bound=BaseModel)
_LIST_LIKE: Final = (list, tuple, set, frozenset)


class SettingsError(ValueError):
    """A setting is invalid. The text contains the setting, its source and the remedy."""


def load_settings(
    model: type[_SettingsT],
    section: str,
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> _SettingsT:
    """Return `model` filled from the file's `[section]`, the environment and `overrides`; later sources win.

    Args:
        model: the settings model; its field names are the keys.
        section: the table in the file; also determines the prefix of variables, such as `TIDELOG_GATEWAY_`.
        path: the TOML file, or None.
        overrides: values from the command line; None values are ignored.
        environ: environment variables; `os.environ` by default.

    Raises:
        SettingsError: the file is missing or not TOML, a key is unknown, or a value is invalid.
    """
    assert section in SECTIONS, section
    prefix = _prefix(section)
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for key, value in _flat(_file_table(section, path)):
        _check_key(model, key, f"[{section}] in {path}")
        values[key] = value
        sources[key] = f"[{section}] in {path}"
    for variable, text in (os.environ if environ is None else environ).items():
        if variable.startswith(prefix):
            key = variable.removeprefix(prefix).lower()
            _check_key(model, key, "the environment", spell=lambda name: prefix + name.upper())
            values[key] = _from_text(model, key, text)
            sources[key] = variable
    for key, value in (overrides or {}).items():
        if value is not None:
            _check_key(model, key, "the command line")
            values[key] = value
            sources[key] = "the command line"
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(section, error, sources)) from error


def _file_table(section: str, path: Path | None) -> dict[str, Any]:
    """Return the file's table for `section`; empty without a path, or if the file does not have the table."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    for name, table in document.items():
        if name not in SECTIONS and not isinstance(table, dict):
            raise SettingsError(f"{path} sets {name} outside a section; put it below [node] or [gateway]")
        if name not in SECTIONS:
            raise SettingsError(f"{path} has an unknown section [{name}]{_suggest(name, SECTIONS)}")
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {name} must be a section: [{name}]")
    section_table: dict[str, Any] = document.get(section, {})
    return section_table


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield keys and values; nested keys are joined by `_`: `segment.write` becomes `segment_write`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{key}_{name}", inner) for name, inner in _flat(value))
        else:
            yield key, value


def _prefix(section: str) -> str:
    """Return the prefix of a section's environment variables."""
    return f"TIDELOG_{section.upper()}_"


def _check_key(model: type[BaseModel], key: str, source: str, spell: Any = str) -> None:
    """Refuse an unknown key; `spell` converts a field name to the source's spelling."""
    if key not in model.model_fields:
        known = [spell(name) for name in model.model_fields]
        raise SettingsError(f"unknown setting {spell(key)} in {source}{_suggest(spell(key), known)}")


def _suggest(wrong: str, known: list[str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else f"; known are: {', '.join(sorted(known))}"


def _from_text(model: type[BaseModel], key: str, text: str) -> object:
    """Return the value of a variable; lists are separated by commas, pydantic parses everything else."""
    annotation = model.model_fields[key].annotation
    if annotation in _LIST_LIKE or get_origin(annotation) in _LIST_LIKE:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _explain(section: str, error: ValidationError, sources: Mapping[str, str]) -> str:
    lines = []
    for fault in error.errors(include_url=False):
        name = ".".join(str(part) for part in fault["loc"])
        key = str(fault["loc"][0]) if fault["loc"] else ""
        where = f" (from {sources[key]})" if key in sources else ""
        if fault["type"] == "missing" and len(fault["loc"]) == 1:
            lines.append(
                f"{section}.{key} is required: set --{key.replace('_', '-')}, the variable "
                f"{_prefix(section)}{key.upper()}, or {key} in [{section}] of a configuration file"
            )
            continue
        lines.append(f"{section}.{name}{where}: {fault['msg']}" if name else f"{section}: {fault['msg']}")
    return "\n".join(lines)
