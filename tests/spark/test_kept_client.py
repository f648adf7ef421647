from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from pyspark_tidelog.kept_client import KeptClient


@dataclass
class Fake:
    closed: bool = False

    def close(self) -> None:
        self.closed = True


def test_the_next_task_has_the_client_of_the_last_one() -> None:
    kept = KeptClient[Fake]()
    with kept.lent(b"a", Fake) as first:
        pass
    with kept.lent(b"a", Fake) as again:
        assert again is first
        with kept.lent(b"a", Fake) as second:  # at the same time
            assert second is not first
    assert (first.closed, second.closed) == (False, True), "one is kept"
    kept.close()
    kept.close()
    assert first.closed


def test_other_credentials_have_another_client() -> None:
    kept = KeptClient[Fake]()
    with kept.lent(b"a", Fake) as first:
        pass
    with kept.lent(b"b", Fake) as other:
        assert other is not first
    assert first.closed
    kept.close()


@pytest.mark.parametrize("error", [ValueError, GeneratorExit, KeyboardInterrupt])
def test_a_client_of_a_task_that_did_not_end_well_is_not_kept(error: type[BaseException]) -> None:
    kept = KeptClient[Fake]()
    with pytest.raises(error), kept.lent(b"a", Fake) as client:
        raise error
    assert client.closed
    with kept.lent(b"a", Fake) as other:
        assert other is not client
    kept.close()


def test_a_client_from_before_a_fork_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptClient[Fake]()
    with kept.lent(b"a", Fake) as parents:
        pass
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with kept.lent(b"a", Fake) as childs:
        assert childs is not parents
    kept.close()
