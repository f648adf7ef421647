"""A worker's share of the limits of the whole gateway.

Limits of the process are divided by the number of workers and rounded down, so their sum never exceeds the setting.
Limits of a single connection, request or answer are not divided.
"""

from __future__ import annotations

from typing import Final

from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.limits import KIB, MIB
from tidelog_proto.process.settings import SettingsError

DIVIDED: Final = {
    "connections_max": 1,
    "address_connections_max": 1,
    "ws_connections_max": 1,
    "wrong_credentials_max": 1,
    "in_flight_bytes_max": KIB,
    "out_bytes_max": 8 * MIB,
    "callers_max": 16,
    "producers_max": 1,
}
"""Setting -> the minimum of one worker."""
_OFF: Final = frozenset({"address_connections_max", "wrong_credentials_max"})
"""Settings for which 0 means unlimited."""


def worker_settings_of(settings: GatewaySettings) -> GatewaySettings:
    """Return the settings of one worker.

    Raises:
        SettingsError: a limit is too low for the number of workers.
    """
    workers = settings.workers
    if workers == 1:
        return settings
    least = DIVIDED | {
        "in_flight_bytes_max": max(settings.body_bytes_max, settings.ws_message_bytes_max),
    }
    shares: dict[str, int] = {}
    for name, needed in least.items():
        value: int | None = getattr(settings, name)
        if value is None or (value == 0 and name in _OFF):
            continue
        shares[name] = value // workers
        if shares[name] < needed:
            is_budget = name == "in_flight_bytes_max"
            why = " (the larger of body_bytes_max and ws_message_bytes_max)" if is_budget else ""
            raise SettingsError(
                f"gateway.{name}: {value} is too low for {workers} workers, each of which needs {needed}{why}; "
                f"set {name} to at least {needed * workers}, or use fewer workers"
            )
    return settings.model_copy(update=shares)
