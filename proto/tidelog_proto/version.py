"""The version of this build. `pyproject.toml` reads it from here, so installed metadata and running code agree."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0"
NODE_SOFTWARE: Final = f"tidelog-node/{VERSION}"
"""How a node names its build in greetings, in its record and in the status: for people, never for decisions."""
CLIENT_SOFTWARE: Final = f"tidelog-python/{VERSION}"
"""How the Python client names its build in greetings; nodes log it."""
