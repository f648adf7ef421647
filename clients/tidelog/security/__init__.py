"""API keys, users, access rules and quotas."""

from __future__ import annotations

from tidelog.security.access_rules import (
    AccessRule,
    KeyInfo,
    NewKey,
    Operation,
    Resource,
    Security,
    UserInfo,
    Verdict,
)
from tidelog.security.quotas import Quota, QuotaUsage

__all__ = [
    "AccessRule",
    "KeyInfo",
    "NewKey",
    "Operation",
    "Quota",
    "QuotaUsage",
    "Resource",
    "Security",
    "UserInfo",
    "Verdict",
]
