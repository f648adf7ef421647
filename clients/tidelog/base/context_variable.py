"""The environment variable that names a context."""

from __future__ import annotations

from typing import Final

CONTEXT_VARIABLE: Final = "TIDELOG_CONTEXT"
