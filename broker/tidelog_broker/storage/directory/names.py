"""Suffixes of file names that the logs and all engines use."""

from __future__ import annotations

from typing import Final

NEW_SUFFIX: Final = ".new"
"""Suffix of an unfinished file or directory, which the next open removes."""
SEGMENT_SUFFIX: Final = ".seg"
"""Suffix of a segment, which is named after its first offset: the removal of a directory removes the segments in the
order of their names, oldest first.
"""
