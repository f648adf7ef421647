"""Findings: the outcomes of the checks of `tidelog doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failure", "skipped"]
"""failure: Tidelog does not work here, or loses records; warning: it works with limitations; skipped: could not be
checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: the name of the check, in a word or two.
        found: the observed fact, with its value.
        remedy: the change to make; "" if no change is needed.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""
