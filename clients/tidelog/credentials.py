"""How a client shows who it is: an API key, given by hand, in a file or in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidelog.errors import InvalidRequestError

API_KEY_VARIABLE: Final = "TIDELOG_API_KEY"
API_KEY_FILE_VARIABLE: Final = "TIDELOG_API_KEY_FILE"
KEY_CHARS_MAX: Final = 1_024


class ApiKeyFile:
    """Gives the key in a file, read again for each connection: whoever replaces the key replaces the file.

    Args:
        path: of a file with nothing but the key in it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __call__(self) -> str:
        """Return the key.

        Raises:
            InvalidRequestError: the file cannot be read.
        """
        try:
            with self._path.open(encoding="ascii", errors="replace") as file:
                return file.read(KEY_CHARS_MAX + 1).strip()
        except OSError as error:
            raise InvalidRequestError(f"cannot read the API key in {self._path}: {error.strerror}") from error


ApiKey = str | Callable[[], str]
"""A key, or what gives one each time that a connection is made."""


def asked_each_time(api_key: ApiKey | None) -> Callable[[], str]:
    """Return what gives the key of a new connection: what was given, or else what the environment names; "": none."""
    if api_key is None:
        path = os.environ.get(API_KEY_FILE_VARIABLE)
        if path:
            return ApiKeyFile(path)
        return lambda: os.environ.get(API_KEY_VARIABLE, "")
    if isinstance(api_key, str):
        return lambda: api_key
    return api_key
