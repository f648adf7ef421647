from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.saved_ports import Ports, chosen, keep, kept_ports


def test_ports_are_kept_until_others_are_asked_for(tmp_path: Path) -> None:
    assert kept_ports(tmp_path / "not made yet") == Ports(7400, (7401,), 8080)
    keep(tmp_path, native=1, management=[2, 3], http=4)
    kept = kept_ports(tmp_path)
    assert kept == Ports(1, (2, 3), 4)
    assert chosen(kept, native=None, management=None, http=None) == kept
    assert chosen(kept, native=0, management=7, http=8) == Ports(0, (7,), 8)


@pytest.mark.parametrize("content", ["", "[]", '{"native": 1}', '{"native": 1, "management": [2], "http": 70000}'])
def test_a_file_that_says_no_ports_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "up.json").write_text(content)
    with pytest.raises(CommandFailed, match=r"up\.json .*remove it"):
        kept_ports(tmp_path)
