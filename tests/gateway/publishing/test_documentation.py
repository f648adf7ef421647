"""Runs the examples of `docs/publishing-over-http.md`, and compares its tables with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tidelog_gateway.bodies.content_type import TAKEN
from tidelog_gateway.publishing.route import PARAMETERS
from tidelog_proto import publish_pb2

PAGE = (Path(__file__).parents[3] / "docs" / "publishing-over-http.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def ran(language: str, code: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.e2e
def test_the_examples_return_the_documented_answers(gateway_address: str) -> None:
    output = ""
    for language, code in FENCE.findall(PAGE):
        if language == "text":
            for line, shown in zip(output.splitlines(), code.splitlines(), strict=True):
                pattern = shown.replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
                assert fnmatchcase(line, pattern), f"{line!r} is not {shown!r}"
        elif language != "protobuf":
            output = ran(language, code.replace("127.0.0.1:8080", gateway_address))


def test_each_form_and_parameter_is_documented() -> None:
    forms = PAGE[: PAGE.index("## JSON")]
    assert set(TAKEN) <= set(re.findall(r"`([\w./+-]+)`", forms))
    table = PAGE[PAGE.index("## Query parameters") : PAGE.index("## Limits")]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")][1:]
    assert {
        name.strip().strip("`"): frozenset(re.findall(r"`(\w+)`", names)) for _, name, names, _ in rows
    } == PARAMETERS


def test_the_documented_message_is_that_of_the_proto_file() -> None:
    shown = re.search(r"^```protobuf\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    source = (Path(publish_pb2.__file__).parent / "publish.proto").read_text()
    bare = re.sub(r"^ *//.*\n", "", source, flags=re.MULTILINE)
    assert bare[bare.index("message ") :] == shown[1]
