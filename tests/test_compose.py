"""What can be checked of compose.yaml without an engine, or a parser of YAML: its lists stand on a line as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer

from tidelog_broker.base.bootstrap import Bootstrap, load_bootstrap
from tidelog_cli.main import build_app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "compose.yaml").read_text()
NODES = ["node1", "node2", "node3"]


def services() -> dict[str, str]:
    """Return each service's lines."""
    part = re.split(r"^(?=\w)", TEXT, flags=re.MULTILINE)
    (found,) = [lines for lines in part if lines.startswith("services:")]
    pieces = re.split(r"^  (\w+):\n", found, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def command_of(service: str) -> list[str]:
    (line,) = re.findall(r"^    command: (\[.*\])$", services()[service], re.MULTILINE)
    words: list[str] = json.loads(line)
    return words


def value_of(service: str, option: str) -> str:
    words = command_of(service)
    return words[words.index(option) + 1]


def founded(folder: Path) -> Bootstrap:
    path = folder / "cluster"
    path.write_text(TEXT.partition("content: |\n")[2])
    return load_bootstrap(path)


def test_the_services_are_three_nodes_and_a_gateway() -> None:
    assert sorted(services()) == ["gateway", *NODES]


def test_all_run_read_only_and_without_capabilities() -> None:
    common = TEXT.partition("x-node: &node\n")[2].partition("\nservices:")[0]
    for lines in [common, services()["gateway"]]:
        for line in ("read_only: true", "cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]'):
            assert re.search(rf"^ +{re.escape(line)}$", lines, re.MULTILINE), line
    assert all("<<: *node\n" in services()[name] for name in NODES)


def test_the_commands_are_valid_ones() -> None:
    group = typer.main.get_command(build_app())
    for service in services():
        name, *options = command_of(service)
        known = {option for parameter in group.commands[name].params for option in parameter.opts}  # type: ignore[attr-defined]  # a group has commands
        assert {option for option in options if option.startswith("--")} <= known, service


def test_each_node_is_the_founder_of_its_name_with_a_volume_of_its_own(tmp_path: Path) -> None:
    founders = founded(tmp_path).nodes
    assert [(node.node_id, node.host, node.port) for node in founders] == [(name, name, 7400) for name in NODES]
    for name in NODES:
        assert value_of(name, "--node-id") == name
        assert value_of(name, "--data") == "/data"
        assert f'volumes: ["{name}:/data"]' in services()[name]
        assert f"  {name}:\n" in TEXT.partition("\nvolumes:\n")[2]


def test_the_gateway_knows_every_node(tmp_path: Path) -> None:
    addresses = [f"{node.host}:{node.port}" for node in founded(tmp_path).nodes]
    assert value_of("gateway", "--bootstrap").split(",") == addresses


def test_it_names_the_files_that_are_given_to_the_nodes() -> None:
    for name in NODES:
        assert "<<: *node" in services()[name]
        assert value_of(name, "--bootstrap") == "/cluster", "where a config lies whose name is cluster"
        assert value_of(name, "--secret-file") == "/run/secrets/secret", "where a secret lies whose name is secret"
    assert "environment: TIDELOG_SECRET" in TEXT


def test_health_is_asked_where_the_image_says(tmp_path: Path) -> None:
    image = (ROOT / "Dockerfile").read_text()
    assert len(founded(tmp_path).nodes) == len(NODES)
    for name in NODES:
        assert f"127.0.0.1:{value_of(name, '--management-port')}/livez" in image
    port = value_of("gateway", "--http-port")
    assert f"127.0.0.1:{port}/livez" in image
    assert "healthcheck" not in TEXT
    assert f'ports: ["127.0.0.1:{port}:{port}"]' in services()["gateway"]
