"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failure", "skipped"]
"""failure: it does not work, or loses records; warning: it works, and will hurt; skipped: it could not be checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: what was looked at, in a word or two.
        verdict: how it is.
        found: what was found, with its value.
        remedy: what to change; "" where nothing is to be changed.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""
