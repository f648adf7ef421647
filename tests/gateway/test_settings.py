from __future__ import annotations

import pytest
from pydantic import ValidationError

from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.process.settings import SettingsError, load_settings


def test_every_setting_has_a_default_and_a_description() -> None:
    GatewaySettings()
    for name, field in GatewaySettings.model_fields.items():
        assert field.description, name


def test_settings_come_from_the_environment_by_their_names() -> None:
    environ = {
        "TIDELOG_GATEWAY_BOOTSTRAP": "a:1,b:2",
        "TIDELOG_GATEWAY_BODY_BYTES_MAX": "2048",
        "TIDELOG_GATEWAY_ALLOWED_ORIGINS": "https://example.org",
    }
    settings = load_settings(GatewaySettings, "gateway", environ=environ)
    assert settings.bootstrap == ["a:1", "b:2"]
    assert settings.body_bytes_max == 2048
    assert settings.allowed_origins == ["https://example.org"]


@pytest.mark.parametrize(
    "bad",
    [
        {"http_port": 65536},
        {"bootstrap": []},
        {"body_timeout_s": 0},
        {"fetch_wait_ms_max": 60_001},
        {"body_bytes_max": 0},
        {"ws_subscriptions_max": 0},
    ],
)
def test_values_out_of_range_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings.model_validate(bad)


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match="did you mean TIDELOG_GATEWAY_HTTP_PORT"):
        load_settings(GatewaySettings, "gateway", environ={"TIDELOG_GATEWAY_HTTP_PROT": "1"})


@pytest.mark.parametrize("origin", ["*", "null", "https://app.example", "http://[::1]:8080", "chrome-extension://abc"])
def test_origins_as_browsers_send_them_are_accepted(origin: str) -> None:
    assert GatewaySettings(allowed_origins=[origin]).allowed_origins == [origin]


@pytest.mark.parametrize(
    "origin",
    [
        "app.example",
        '["https://app.example"]',
        "https://app.example/",
        "https://app.example:443",
        "http://app.example:80",
        "https://App.example",
        "https://",
        "https://a b",
    ],
)
def test_origins_that_no_browser_sends_are_refused_with_the_form(origin: str) -> None:
    with pytest.raises(ValidationError, match=r"scheme and host in lower case"):
        GatewaySettings(allowed_origins=[origin])
