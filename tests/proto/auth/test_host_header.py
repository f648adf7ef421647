from __future__ import annotations

import socket

import pytest

from tidelog_proto.auth.host_header import HostNames


@pytest.mark.parametrize("host", ["127.0.0.1:80", "[::1]", "localhost:1", "BOX.lan.", "box", "log.example:7401"])
def test_addresses_and_names_of_the_machine_and_of_settings_are_own(host: str) -> None:
    assert HostNames(["log.example", ""], "box.lan").is_own(host)


@pytest.mark.parametrize("host", ["", "evil.example", "box.lan.evil.example", "127.0.0.1.evil.example", "a@127.0.0.1"])
def test_names_that_a_stranger_can_give_are_not_own(host: str) -> None:
    assert not HostNames(["log.example", ""], "box.lan").is_own(host)


def test_the_machine_says_its_name_itself() -> None:
    assert HostNames([]).is_own(socket.gethostname())
