from __future__ import annotations

import pytest
import typer
from tests.cli.conftest import Cli

from tidelog_cli.base.quantities import duration_ms, size_bytes


def test_sizes_and_durations_have_units() -> None:
    assert (size_bytes("64MiB"), size_bytes("0"), duration_ms("7d")) == (64 << 20, 0, 604_800_000)
    with pytest.raises(typer.BadParameter, match="64MiB"):
        size_bytes("64 megs")
    with pytest.raises(typer.BadParameter, match="at least 1ms"):
        duration_ms("0s")


def test_a_topic_takes_them(cli: Cli) -> None:
    options = ("--retention-bytes", "1GiB", "--segment-bytes", "1MiB", "--flush", "interval", "--flush-interval", "2s")
    assert cli("topic", "create", "with-units", *options).code == 0
    told = cli("topic", "describe", "with-units", "--json").out
    assert '"retention_bytes": 1073741824' in told
    assert '"segment_bytes": 1048576' in told
    assert '"flush_interval_ms": 2000' in told
    refused = cli("topic", "alter", "with-units", "--retention-bytes", "1G")
    assert refused.code == 2
    assert "64MiB" in refused.err
