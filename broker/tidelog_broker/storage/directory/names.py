"""Names of files that logs and engines agree on."""

from __future__ import annotations

from typing import Final

NEW_SUFFIX: Final = ".new"
"""An unfinished file or directory; removed at open."""
SEGMENT_SUFFIX: Final = ".seg"
"""A file of records, named after its first offset: when a directory is removed, these are removed in order."""
