"""Detection of missing extras, so that a command reports them before it starts anything."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from tidelog_cli.base.failures import CommandFailed

_BROKER: Final = ("cryptography", "prometheus_client", "pydantic", "pydantic_settings", "jwt", "uvloop")
_GATEWAY: Final = (
    *("cryptography", "fastapi", "fastapi_offline", "msgspec", "orjson", "prometheus_client", "pydantic"),
    *("pydantic_settings", "typing_extensions", "uvicorn", "uvloop", "websockets"),
)

MODULES: Final = {
    "broker": _BROKER,
    "gateway": _GATEWAY,
    "up": tuple(dict.fromkeys((*_BROKER, *_GATEWAY))),
    "top": ("textual",),
    "rocksdb": ("rocksdict",),
    "loadtest": ("httptools", "locust", "uvloop", "websocket"),
}
"""Extra -> modules that it installs and the base package does not."""


def missing_from(*extras: str) -> str:
    """Return the missing modules of extras and how to install them, without importing; "" if all are installed."""
    lacking = [extra for extra in extras if not all(map(_is_installed, MODULES[extra]))]
    if not lacking:
        return ""
    names = dict.fromkeys(name for extra in lacking for name in MODULES[extra] if not _is_installed(name))
    return (
        f"not installed here (no module {', '.join(map(repr, names))}); run: pip install 'tidelog[{','.join(extras)}]'"
    )


def require_extras(command: str, *extras: str) -> None:
    """Refuse a command whose extras are not installed.

    Raises:
        CommandFailed: one of the extras is missing.
    """
    missing = missing_from(*extras)
    if missing:
        raise CommandFailed(f"`tidelog {command}` needs modules that are {missing}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
