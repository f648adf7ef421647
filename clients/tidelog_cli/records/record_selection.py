"""The options of `tidelog consume` that select records."""

from __future__ import annotations

from typing import TypedDict


class RecordSelection(TypedDict):
    """The arguments of `Client.consumer` that select records."""

    key: bytes | None
    tag: str | None
    where: str | None
