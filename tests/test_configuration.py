from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.configuration_table import INTRODUCTION, PAGE, render

from tidelog_broker.base.config import NodeSettings
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.process.settings import load_settings


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m tests.configuration_table"


def test_the_example_loads(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", INTRODUCTION, re.DOTALL)
    assert example is not None
    path = tmp_path / "tidelog.toml"
    path.write_text(example[1])
    assert set(tomllib.loads(example[1])) == {"node", "gateway"}
    assert load_settings(NodeSettings, "node", path, environ={}).advertised_host == "log1.example.org"
    assert load_settings(GatewaySettings, "gateway", path, environ={}).bootstrap == ["log1.example.org:7400"]
