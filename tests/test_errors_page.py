"""`docs/errors.md` lists every error, with the description in the code."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import get_args

from tidelog import errors
from tidelog_cli.base import failures
from tidelog_gateway.problems import from_error
from tidelog_gateway.protocol import ws_protocol
from tidelog_gateway.reading.values import ValueEncoding
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, code_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
CLIENTS_OWN = (
    errors.NodeUnreachableError,
    errors.ConnectionLostError,
    errors.BadReplyError,
    errors.OutcomeUnknownError,
)
"""Errors that only the client raises and the gateway passes on."""


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without the head of the table."""
    text = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert text is not None
    lines = [line for line in text[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def gateways_own_codes() -> set[tuple[str, str]]:
    """Return code and status of every problem that the gateway's sources make by themselves."""
    found = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
                status, code = node.args[:2]
                for name in _texts_of(code) if not _is_passed_on(code) else ():
                    assert isinstance(status, ast.Constant), f"{path}:{node.lineno}: the status is computed"
                    found.add((name, str(status.value)))
    assert len(found) > 10
    return found


def _is_passed_on(code: ast.expr) -> bool:
    """Tell whether a code is that of another problem, or of an error of the protocol or the client."""
    return ast.unparse(code) in {"problem.code", "_code_of(error)"}


def _texts_of(code: ast.expr) -> list[str]:
    """Return the codes that the argument of a `Problem` can be.

    A code that is composed has to end in a value of `ValueEncoding`; any other computed code fails the test.
    """
    if isinstance(code, ast.Constant):
        return [str(code.value)]
    assert isinstance(code, ast.JoinedStr), f"teach this test to read the code {ast.unparse(code)}"
    prefix, encoding = code.values
    assert isinstance(prefix, ast.Constant), ast.unparse(code)
    assert isinstance(encoding, ast.FormattedValue), ast.unparse(code)
    assert ast.unparse(encoding.value) == "self.encoding", ast.unparse(code)
    return [f"{prefix.value!s}{name}" for name in get_args(ValueEncoding) if name != "base64"]


def test_every_code_is_listed_with_its_nature() -> None:
    listed = rows("Codes")
    for (number, name, later, written, status, class_name, meaning), code in zip(
        listed, sorted(pb.ErrorCode.values()), strict=True
    ):
        error = errors.error_of(pb.Error(code=code_name(code)))
        assert (number, name) == (str(code), f"`{code_name(code)}`")
        assert later == ("yes" if NATURE[code].retriable else "no")
        assert written == ("no" if NATURE[code].definite else "perhaps")
        assert (status, class_name) == (str(from_error(error).status), f"`{type(error).__name__}`")
        assert meaning.endswith(".")


def test_every_code_of_the_gateway_is_listed() -> None:
    listed = {(code.strip("`"), status) for code, status, _ in rows("HTTP")}
    protocols = {code_name(code).lower() for code in NATURE} - {"internal"}
    own = {(code, status) for code, status in gateways_own_codes() if code not in protocols}
    passed_on = {(problem.code, str(problem.status)) for problem in (from_error(kind("x")) for kind in CLIENTS_OWN)}
    assert listed == own | passed_on


def test_every_way_to_close_a_websocket_is_listed() -> None:
    ours = {str(value) for name, value in vars(ws_protocol).items() if name.startswith("CLOSE_")}
    assert {code for code, _ in rows("WebSocket")} == ours | {"1009", "1012", "1013"}


def test_every_exit_code_is_listed() -> None:
    ours = {str(value) for name, value in vars(failures).items() if name.startswith("EXIT_") and isinstance(value, int)}
    assert {code for code, _ in rows("Exit codes")} == ours | {str(os.EX_IOERR), str(os.EX_CONFIG)}
