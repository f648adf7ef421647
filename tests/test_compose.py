"""Checks of compose.yaml without an engine; tests/image runs its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import typer
from tests.compose_file import NODES, TEXT, list_of, services, value_of

from tidelog_broker.base.bootstrap import Bootstrap, load_bootstrap
from tidelog_cli.main import build_app

ROOT = Path(__file__).parents[1]


def found_in(volume: Path) -> Bootstrap:
    """Do what the service `founding` does, in a folder in place of its volume."""
    (script,) = list_of("founding", "command")
    assert list_of("founding", "volumes") == ["founding:/data"]
    here = script.replace("/data/", f"{volume}/").replace("tidelog ", f"{sys.executable} -m tidelog_cli ")
    entrypoint = list_of("founding", "entrypoint")
    subprocess.run([*entrypoint, here], env=os.environ, check=True, timeout=60)
    return load_bootstrap(volume / "cluster" / "cluster.json")


def test_the_services_are_three_nodes_a_gateway_and_the_founding_job() -> None:
    assert sorted(services()) == ["founding", "gateway", *NODES]


def test_all_run_read_only_and_without_capabilities() -> None:
    common = TEXT.partition("x-sealed: &sealed\n")[2].partition("\n\n")[0]
    for line in ("read_only: true", "cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]'):
        assert re.search(rf"^ +{re.escape(line)}$", common, re.MULTILINE), line
    assert "  <<: *sealed\n" in TEXT.partition("x-node: &node\n")[2].partition("\n\n")[0]
    assert all("<<: *node\n" in services()[name] for name in NODES)
    assert all("<<: *sealed\n" in services()[name] for name in ("founding", "gateway"))


def test_nothing_has_to_be_put_into_a_container_that_is_read_only() -> None:
    """Compose copies the text of a config, and a secret of the environment, into the container, which is refused."""
    assert not re.search(r"^ *(configs|secrets|content|environment):", TEXT, re.MULTILINE)


def test_the_image_is_built_once() -> None:
    assert TEXT.count("build:") == 1, "several builds of one name at a time disturb each other"
    assert "build: ." in services()["founding"]
    assert "founding: {condition: service_completed_successfully}" in TEXT


def test_the_commands_are_valid_ones() -> None:
    group = typer.main.get_command(build_app())
    for service in [*NODES, "gateway"]:
        name, *options = list_of(service, "command")
        known = {option for parameter in group.commands[name].params for option in parameter.opts}  # type: ignore[attr-defined]  # a group has commands
        assert {option for option in options if option.startswith("--")} <= known, service


def test_each_node_is_the_founder_of_its_name_with_its_own_volume(tmp_path: Path) -> None:
    founders = found_in(tmp_path).nodes
    assert [(node.node_id, node.host, node.port) for node in founders] == [(name, name, 7400) for name in NODES]
    for name in NODES:
        assert value_of(name, "--node-id") == name
        assert value_of(name, "--data") == "/data"
        assert list_of(name, "volumes") == [f"{name}:/data", "founding:/founding:ro"]
        assert f"  {name}:\n" in TEXT.partition("\nvolumes:\n")[2]


def test_a_cluster_is_founded_once_and_an_interrupted_founding_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "cluster.json").write_text("{")
    first = found_in(tmp_path)
    assert found_in(tmp_path).cluster_id == first.cluster_id
    assert [path.name for path in tmp_path.iterdir()] == ["cluster"]
    assert (tmp_path / "cluster" / "secret").stat().st_mode & 0o777 == 0o600


def test_the_gateway_knows_every_node_and_has_no_volume(tmp_path: Path) -> None:
    addresses = [f"{node.host}:{node.port}" for node in found_in(tmp_path).nodes]
    assert value_of("gateway", "--bootstrap").split(",") == addresses
    assert list_of("gateway", "tmpfs") == ["/data"]


def test_other_services_may_ask_the_gateway_by_its_name() -> None:
    assert value_of("gateway", "--allowed-hosts") == "gateway"


def test_it_names_the_files_that_the_nodes_find_in_their_volume(tmp_path: Path) -> None:
    found_in(tmp_path)
    for name in NODES:
        for option in ("--bootstrap", "--secret-file"):
            path = Path(value_of(name, option))
            assert (tmp_path / path.relative_to("/founding")).is_file()


def test_health_is_checked_at_the_ports_of_the_image() -> None:
    image = (ROOT / "Dockerfile").read_text()
    for name in NODES:
        assert f"127.0.0.1:{value_of(name, '--management-port')}/livez" in image
    port = value_of("gateway", "--http-port")
    assert f"127.0.0.1:{port}/livez" in image
    assert "healthcheck" not in TEXT
    assert list_of("gateway", "ports") == [f"127.0.0.1:{port}:{port}"]
