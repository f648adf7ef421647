"""Tests that Arrow does not load pandas behind a command's back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tidelog_proto.process.arrow_without_pandas import disable_pandas_import


@pytest.fixture
def with_pandas(tmp_path: Path) -> Path:
    """Return a directory with a fake pandas that prints when it is imported."""
    (tmp_path / "pandas.py").write_text("print('pandas is loaded')\nraise ImportError('fake')\n")
    return tmp_path


def printed(code: str, directory: Path) -> str:
    code = f"import sys; sys.path.insert(0, {str(directory)!r})\n{code}\nimport pyarrow; pyarrow.array([b'x'])"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout


def test_arrow_loads_pandas_unless_told_otherwise(with_pandas: Path) -> None:
    assert "pandas is loaded" in printed("", with_pandas)
    assert not printed(
        "from tidelog_proto.process.arrow_without_pandas import disable_pandas_import; disable_pandas_import()\n"
        "assert 'pandas' not in sys.modules",
        with_pandas,
    )


def test_imported_pandas_stays_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = ModuleType("pandas")
    monkeypatch.setitem(sys.modules, "pandas", loaded)
    disable_pandas_import()
    assert sys.modules["pandas"] is loaded


def test_the_command_leaves_it_out(with_pandas: Path) -> None:
    out = printed("from tidelog_cli.main import main; assert main(['produce', '--help']) == 0", with_pandas)
    assert "Usage" in out
    assert "pandas" not in out
