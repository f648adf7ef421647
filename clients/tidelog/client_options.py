"""The arguments of `Client` as a dictionary type."""

from __future__ import annotations

from typing import TypedDict

from tidelog.credentials import ApiKey, Credentials
from tidelog.metrics import ClientMetrics
from tidelog.tls import Tls


class ClientOptions(TypedDict, total=False):
    """The arguments of `Client` except the addresses; documented there."""

    client_id: str
    request_timeout_s: float
    quorum_timeout_s: float | None
    unreachable_timeout_s: float | None
    idle_poll_us: int
    zone: str
    metrics: ClientMetrics | None
    api_key: ApiKey | None
    credentials: Credentials | None
    tls: Tls | bool | None
