from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from tests.authority import Authority

from tidelog_proto.tls.certificate_expiry import DAY_S, CertificateExpiryMonitor
from tidelog_proto.tls.reloaded_files import TlsFiles


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


def test_expiry_is_reported_and_warned_of_once_a_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    authority, clock, told = Authority(tmp_path), Clock(), dict[str, float]()
    files = authority.files("node", "n", days=1)
    ends = CertificateExpiryMonitor(files, clock, told.__setitem__)
    ends.read()
    began_s = clock.now_s
    assert told == {
        "certificate": pytest.approx(began_s + DAY_S, abs=60),
        "ca": pytest.approx(began_s + 2 * DAY_S, abs=60),
    }
    ends.look()
    assert not caplog.messages, "it is for a day, and new"
    clock.now_s = began_s + 0.9 * DAY_S
    for _ in range(3):
        ends.look()
    (message,) = caplog.messages
    assert "the certificate in" in message
    assert "expires at" in message
    assert "replace the file with a newer one" in message
    clock.now_s = began_s + 1.95 * DAY_S
    ends.look()
    assert len(caplog.messages) == 3, "a day later, and the CA besides"
    assert "expired at" in caplog.messages[1]
    assert "the CA in" in caplog.messages[2]
    clock.now_s = began_s
    authority.files("node", "n", days=1)
    ends.read()
    ends.look()
    assert len(caplog.messages) == 3


def test_unreadable_file_keeps_its_expiry(tmp_path: Path) -> None:
    told = dict[str, float]()
    files = Authority(tmp_path).files("node", "n")
    ends = CertificateExpiryMonitor(files, time.time, told.__setitem__)
    ends.read()
    before = dict(told)
    assert files.cert is not None
    assert files.ca is not None
    files.cert.write_text("garbage")
    files.ca.unlink()
    ends.read()
    ends.look()
    assert told == before
    nothing = CertificateExpiryMonitor(TlsFiles(), time.time, told.__setitem__)
    nothing.read()
    nothing.look()


def test_of_several_cas_the_last_one_counts_and_of_a_chain_the_first(tmp_path: Path) -> None:
    told = dict[str, float]()
    authority = Authority(tmp_path)
    own = authority.files("node", "n", days=1)
    assert own.cert is not None
    chain = tmp_path / "both.pem"
    chain.write_bytes(authority.ca.read_bytes() + own.cert.read_bytes())
    CertificateExpiryMonitor(TlsFiles(cert=chain, ca=chain), time.time, told.__setitem__).read()
    assert told["ca"] - told["certificate"] == pytest.approx(DAY_S, abs=60)
