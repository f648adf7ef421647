"""The scripts of `docs/javascript.md` print what is shown below them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.gateway.conftest import process
from tests.javascript.page_blocks import ADDRESS, PAGE, scripts

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"


@pytest.mark.e2e
def test_each_script_prints_the_shown_output(node_command: list[str], node_address: str, tmp_path: Path) -> None:
    index = (CLIENT / "src" / "index.js").as_uri()
    script = tmp_path / "script.mjs"
    with process("gateway", "--bootstrap", node_address, "--http-port", "0") as (_, ready):
        for text, output in scripts():
            code = text.replace(ADDRESS, f"http://127.0.0.1:{ready['http_port']}").replace('"tidelog"', f'"{index}"')
            script.write_text(code)
            command = [*node_command, str(script)]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                env=os.environ | {"NO_COLOR": "1", "NODE_NO_WARNINGS": "1"},
            )
            assert (done.stdout, done.stderr, done.returncode) == (output, "", 0), text


def test_the_page_names_each_code_and_each_class_of_the_client() -> None:
    page = PAGE.read_text()
    sources = "".join(path.read_text() for path in (CLIENT / "src").glob("*.js"))
    codes = {*re.findall(r'\bcode: "(\w+)"', sources)}
    codes -= {"error", "shutting_down", "too_slow", "try_again", "too_many_websockets", "message_refused", "closed"}
    assert codes >= {"bad_reply", "connection_lost", "invalid_option", "not_json"}
    classes = re.findall(r"^export class (\w+Error) extends TidelogError", sources, re.MULTILINE)
    assert [name for name in (*codes, *classes) if f"`{name}`" not in page] == []
