"""What a client may be given by name, where that is handed on."""

from __future__ import annotations

from typing import TypedDict

from tidelog.credentials import ApiKey, Credentials
from tidelog.metrics import ClientMetrics
from tidelog.tls import Tls


class ClientOptions(TypedDict, total=False):
    """The arguments of `Client` but the addresses; it says what they mean."""

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
