from __future__ import annotations

import pytest

from tidelog_proto.process.units import parse_duration_ms, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("64MiB", 64 << 20),
        (" 64 mib ", 64 << 20),
        ("1.5GB", 1_500_000_000),
        ("2kB", 2000),
        ("3TiB", 3 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("250", 250), ("250ms", 250), ("1.5s", 1500), ("2m", 120_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1M", "1 parsec", "1e9", "٣MiB", "1.5B", "0.3B", "9" * 40])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a|give a whole number"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "1MiB", "0.5", "0.5ms", "1d12h"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a|give a whole number"):
        parse_duration_ms(text)
