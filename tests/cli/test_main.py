from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidelog_cli.base import failures
from tidelog_cli.main import OWN_COMMANDS, main, own_meant, parts_meant
from tidelog_cli.plugins import PARTS


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == failures.EXIT_OK
    assert capsys.readouterr().out.startswith("tidelog 0.")


@pytest.mark.parametrize("command", [["topic", "list"], ["node"], ["gateway", "--config", "x"], ["bench", "produce"]])
def test_every_command_tells_the_version(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--version"]) == failures.EXIT_OK
    assert capsys.readouterr().out.startswith("tidelog 0.")


def test_word_after_two_dashes_is_not_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "describe", "--bootstrap", "127.0.0.1:1", "--", "--version"]) == failures.EXIT_CANNOT_CONNECT
    assert capsys.readouterr().out == ""


def test_shells_complete_commands() -> None:
    environ = os.environ | {"_TIDELOG_COMPLETE": "complete_bash", "COMP_WORDS": "tidelog topi", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from tidelog_cli.__main__ import run; run()"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert completed.stdout.split() == ["topic"]


@pytest.mark.parametrize("arguments", [["no-such-command"], ["topic", "create"], ["produce", "t", "--acks", "2"]])
def test_a_wrong_command_line_is_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == failures.EXIT_USAGE
    assert "Traceback" not in capsys.readouterr().err


def test_unreachable_node_has_one_line_and_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 1 is reserved; nothing listens there.
    assert main(["topic", "list", "--bootstrap", "127.0.0.1:1"]) == failures.EXIT_CANNOT_CONNECT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tidelog: ")
    assert "127.0.0.1:1" in lines[0]


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "topic", "list", "--bootstrap", "127.0.0.1:1"]) == failures.EXIT_CANNOT_CONNECT
    assert "Traceback" in capsys.readouterr().err


def test_a_part_is_loaded_only_when_it_may_be_meant() -> None:
    def names(*arguments: str) -> set[str]:
        return {entry.name for entry in parts_meant(arguments)}

    assert [name for name in OWN_COMMANDS if names(name)] == []
    assert names("--debug", "topic", "list") == set()
    assert names("node", "--data", "topic") == names("log", "verify") == {"node"}
    assert names("gateway") == {"gateway"}
    assert names() == names("--help") == names("of-somebody-else") == set(PARTS)


def test_only_the_named_command_is_built() -> None:
    assert own_meant(["--debug", "--context", "sql", "topic", "list"]) == ["topic"]
    assert own_meant(["node"]) == own_meant(["log", "verify"]) == own_meant(["gateway"]) == []
    assert own_meant([]) == own_meant(["--help"]) == own_meant(["topicc"]) == list(OWN_COMMANDS)


def test_only_the_module_of_the_named_command_is_loaded() -> None:
    program = (
        "import sys; from tidelog_cli.main import main; assert main(['group', 'list', '--help']) == 0; "
        "print([name for name in ('groups', 'security', 'users') if f'tidelog_cli.admin.{name}' in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "['groups']"


def test_a_mistyped_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topicc", "list"]) == failures.EXIT_USAGE
    assert "'topic'" in capsys.readouterr().err


def test_a_node_loads_neither_the_gateway_nor_the_benchmarks() -> None:
    program = (
        "import sys; from tidelog_cli.main import main; assert main(['node', '--help']) == 0; "
        "print([name for name in ('tidelog_broker', 'tidelog_gateway', 'tidelog_loadtest') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "['tidelog_broker']"


def test_servers_load_nothing_that_formats_tables() -> None:
    program = "import sys, tidelog_cli.main, tidelog_broker.cli.commands, tidelog_gateway.commands; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "rich" not in ended.stdout.split()


def test_a_python_without_assertions_is_refused() -> None:
    command = [sys.executable, "-O", "-m", "tidelog_cli", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == failures.EXIT_FAILED
    assert "python -O is refused" in ended.stderr


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == failures.EXIT_OK
    shown = capsys.readouterr().out
    assert [name for name in (*OWN_COMMANDS, "node", "gateway", "log", "bench") if name not in shown] == []


@pytest.mark.parametrize("command", ["node", "gateway"])
def test_the_help_of_a_process_names_its_table(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In brackets it would be taken for markup and left out."""
    assert main([command, "--help"]) == failures.EXIT_OK
    assert f"table `{command}`" in " ".join(capsys.readouterr().out.replace("│", " ").split())
