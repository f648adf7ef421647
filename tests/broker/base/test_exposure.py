from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.exposure import check_exposure
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.wire.loopback import is_loopback

SAFE = {"tls_cert_file": "node.pem", "auth": "required"}


def settings_of(**told: Any) -> NodeSettings:
    return NodeSettings.model_validate({"data": "data"} | told)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"host": "localhost", "management_host": "::1"},
        {"host": "127.0.0.2"},
        {"host": "0.0.0.0"} | SAFE,
        {"management_host": "0.0.0.0", "tls_cert_file": "node.pem", "management_token_file": "metrics.token"},
    ],
)
def test_unreachable_or_protected_node_may_start(told: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    check_exposure(settings_of(**told))
    assert not caplog.records


@pytest.mark.parametrize("told", [{"tls_cert_file": "node.pem"}, {"host": "0.0.0.0"} | SAFE])
def test_closed_metrics_are_logged_with_a_remedy(told: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    check_exposure(settings_of(management_host="0.0.0.0", **told))
    (line,) = caplog.messages
    assert "at 0.0.0.0, and management_token_file is not set: /livez and /readyz are open, and /metrics, " in line
    named = [word for word in line.split() if word.startswith("TIDELOG_NODE_")]
    assert [word.strip(",").removeprefix("TIDELOG_NODE_").lower() for word in named] == ["management_token_file"]


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        ({"host": "0.0.0.0"}, "at 0.0.0.0, without encryption and without authentication"),
        ({"host": ""}, "without encryption and"),
        ({"host": "::"}, "at ::, without"),
        ({"host": "log1.example"}, "at log1.example, without"),
        ({"host": "10.0.0.1", "auth": "required"}, "at 10.0.0.1, without encryption, so"),
        ({"host": "10.0.0.1", "tls_cert_file": "node.pem"}, "at 10.0.0.1, without authentication, so"),
        ({"management_host": "0.0.0.0"}, "at 0.0.0.0, without encryption, so"),
    ],
)
def test_exposed_node_is_refused_with_the_remedy(
    told: dict[str, Any], lacks: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SettingsError) as caught:
        check_exposure(settings_of(**told))
    text, *lines = str(caught.value).splitlines()
    assert lacks in text
    assert "--insecure" in text
    assert len(lines) == 3
    assert not caplog.records
    check_exposure(settings_of(insecure=True, **told))
    assert "the node starts anyway, because the setting insecure is on" in caplog.text


def test_remedy_commands_fix_the_exposure(tmp_path: Path) -> None:
    """Their variables are settings, by their names."""
    with pytest.raises(SettingsError) as caught:
        check_exposure(settings_of(host="0.0.0.0"))
    named = [word for word in str(caught.value).split() if word.startswith("TIDELOG_NODE_")]
    told = {
        name.removeprefix("TIDELOG_NODE_").lower(): value for name, _, value in (each.partition("=") for each in named)
    }
    check_exposure(settings_of(host="0.0.0.0", **told))


@pytest.mark.parametrize(("host", "is_it"), [("127.1.2.3", True), ("::1", True), ("localhost", True), ("", False)])
def test_loopback_addresses_are_recognised(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it
