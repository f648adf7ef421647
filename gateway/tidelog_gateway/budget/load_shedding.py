"""When a budget is used up, those give way that do not come on: the bounds, for what comes in and what goes out."""

from __future__ import annotations

from typing import Final

from tidelog_proto.limits import KIB

GIVE_WAY_S: Final = 1.0
"""How long a connection may send or take nothing while others wait for room."""

PROGRESS_BYTES: Final = 64 * KIB
"""A connection that has sent or taken less than this in that time, and not the last of it, has done nothing."""

PRESS_S: Final = 0.1
"""How often the budget is looked through for those, and how often one who waits for room looks again."""
