from __future__ import annotations

import pytest

from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.workers.worker_settings import DIVIDED, worker_settings_of
from tidelog_proto.limits import MIB
from tidelog_proto.process.settings import SettingsError

KEPT = {
    *("bootstrap", "host", "http_port", "workers", "insecure", "tls_cert_file", "tls_key_file", "auth", "ui"),
    *("allowed_origins", "allowed_hosts", "access_log", "otel", "ui_interval_s"),
    *("request_timeout_s", "head_timeout_s", "keep_alive_timeout_s", "body_timeout_s", "stop_timeout_s"),
    *("body_bytes_max", "connection_out_bytes_max", "records_per_request_max", "fetch_bytes_max", "fetch_wait_ms_max"),
    *("ws_subscriptions_max", "ws_publishes_max", "ws_message_bytes_max", "ws_batch_records_max", "ws_batch_bytes_max"),
    *("ws_ping_interval_s", "ws_ping_timeout_s", "ws_member_idle_s", "ws_slow_timeout_s", "stream_heartbeat_s"),
}
"""Settings of one request or one connection, or settings that cannot be divided between workers."""


def test_each_setting_is_divided_or_listed_as_not_divided() -> None:
    assert set(GatewaySettings.model_fields) == KEPT | set(DIVIDED)


def test_the_sum_of_the_shares_is_at_most_the_setting() -> None:
    settings = GatewaySettings(workers=3, address_connections_max=100)
    share = worker_settings_of(settings)
    for name in DIVIDED:
        assert 0 < 3 * getattr(share, name) <= getattr(settings, name)


def test_an_unlimited_setting_is_unlimited_in_each_worker() -> None:
    share = worker_settings_of(GatewaySettings(workers=2, address_connections_max=0, wrong_credentials_max=0))
    assert (share.address_connections_max, share.wrong_credentials_max) == (0, 0)
    assert worker_settings_of(GatewaySettings(workers=2)).address_connections_max is None


def test_one_process_has_the_whole_limit() -> None:
    settings = GatewaySettings(out_bytes_max=9 * MIB)
    assert worker_settings_of(settings) is settings


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("connections_max", 3),
        ("address_connections_max", 3),
        ("wrong_credentials_max", 3),
        ("in_flight_bytes_max", 31 * MIB),
        ("out_bytes_max", 31 * MIB),
        ("callers_max", 63),
        ("producers_max", 3),
        ("ws_connections_max", 3),
    ],
)
def test_a_limit_that_cannot_be_divided_is_refused_with_the_remedy(setting: str, value: int) -> None:
    with pytest.raises(SettingsError, match=rf"gateway\.{setting}: {value} .* at least \d+, or use fewer workers"):
        worker_settings_of(GatewaySettings.model_validate({"workers": 4, setting: value}))
    worker_settings_of(GatewaySettings.model_validate({"workers": 1, setting: value}))
