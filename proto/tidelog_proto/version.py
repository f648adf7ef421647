"""The version of this build; `pyproject.toml` reads it from here.

Between releases it is `X.Y.Z.dev0`, where X.Y.Z is the next release: a development build never has the name of a
release.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.3.0.dev0"
NODE_SOFTWARE: Final = f"tidelog-node/{VERSION}"
"""Name of the build that a node reports in greetings, its registration and the status; informational only."""
CLIENT_SOFTWARE: Final = f"tidelog-python/{VERSION}"
"""Name of the build that the Python client reports in greetings; nodes log it."""
