"""The image is built, and run as in docs/containers.md and compose.yaml: read-only, as an unprivileged user."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from tests.compose_file import NODES, list_of
from tests.image.engine import BASE, HEALTH_CHECK, EngineError, Place

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.machine, pytest.mark.timeout(900)]

GOING_ON_S = 30
SERVICES = ["founding", *NODES, "gateway"]
USER = 10001

# Everything that the image's user may change, where nothing is mounted read-only: links, devices and processes aside.
WRITABLE = "find / -xdev -writable -not -path '/proc/*' -not -path '/dev/*' -not -type l 2>/dev/null || true"


def values(place: Place, name: str) -> list[str]:
    """Return the values of every record of the topic `visits`, as a reader in a container sees them."""
    shown = place.inside(name, "tidelog", "consume", "visits", "--json")
    return sorted(json.loads(line)["value"] for line in shown.splitlines())


def test_a_node_serves_is_healthy_stops_in_order_and_has_its_records_again(place: Place) -> None:
    place.volume("data")
    options = ["--network", "none", "--volume", f"{place.named('data')}:/data"]
    place.start("node", options)
    place.ready("node")
    place.inside("node", "tidelog", "topic", "create", "visits", "--partitions", "2")
    place.inside("node", "tidelog", "produce", "visits", given="one\ntwo\nthree\n")
    assert values(place, "node") == ["one", "three", "two"]
    place.inside("node", "sh", "-c", HEALTH_CHECK)
    assert place.stop("node") == 0
    place.again("node")
    place.ready("node", times=2)
    assert values(place, "node") == ["one", "three", "two"]
    assert place.stop("node") == 0
    # The data on the volume does not depend on a container.
    place.start("other", options)
    place.ready("other")
    assert values(place, "other") == ["one", "three", "two"]


def test_it_runs_unprivileged_and_only_its_data_can_be_written(place: Place) -> None:
    place.start("node", ["--network", "none"])
    place.ready("node")
    status = dict(line.split(":\t", 1) for line in place.inside("node", "cat", "/proc/1/status").splitlines())
    assert {*status["Uid"].split(), *status["Gid"].split()} == {str(USER)}
    assert {status[name].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert status["NoNewPrivs"] == "1"
    written = place.inside("node", "sh", "-c", WRITABLE).split()
    assert "/data" in written
    assert [path for path in written if path != "/data" and not path.startswith("/data/")] == []


def test_the_image_holds_nothing_that_it_does_not_need(place: Place) -> None:
    allowed = {"/tmp", "/var/tmp", "/run/lock", "/var/lock", "/data", "/var/lib/tidelog"}
    assert set(place.once(WRITABLE)) <= allowed, "the program cannot be changed even without read-only"
    packages = place.once("ls /opt/tidelog/lib/python3.13/site-packages")
    assert "tidelog_broker" in packages
    assert not {"pip", "setuptools", "wheel", "hatchling", "pytest", "tests"} & set(packages)
    names = ("*.whl", "*.key", ".git", ".cache", ".netrc", "id_*", "test_*idelog*")
    wanted = " -o ".join(f"-name '{name}'" for name in names)
    # The content of the base image is not checked.
    added = "/opt /data /var/lib/tidelog /root /home"
    assert place.once(f"find {added} {wanted}", ["--user", "0"]) == []
    secret = re.compile("SECRET|PASSWORD|TOKEN|API_KEY", re.IGNORECASE)
    assert [line for line in place.once("env") if secret.search(line)] == []


def start_service(place: Place, name: str, *, detached: bool = True) -> None:
    """Start a service with the options in compose.yaml."""
    options = place.joined(name, SERVICES)
    for volume in list_of(name, "volumes"):
        options += ["--volume", place.named(volume)]
    for folder in list_of(name, "tmpfs"):
        options += ["--tmpfs", folder]
    entrypoint, *first = list_of(name, "entrypoint") or ["tidelog"]
    place.start(name, [*options, "--entrypoint", entrypoint], [*first, *list_of(name, "command")])
    if not detached:
        assert place.exit_code(name) == 0


PUBLISH = """
import sys, urllib.request
record = '{"records": [{"value_encoding": "utf8", "value": "%s"}]}' % sys.argv[1]
asked = urllib.request.Request("http://127.0.0.1:8080/v1/topics/visits/records", record.encode())
asked.add_header("content-type", "application/json")
print(urllib.request.urlopen(asked, timeout=20).read().decode())
"""


def publish(place: Place, value: str) -> None:
    answer = json.loads(place.inside("gateway", "python", "-c", PUBLISH, value))
    assert len(answer["results"]) == 1


def status_of(place: Place, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(place.inside(name, "tidelog", "cluster", "status", "--json"))
    return answer


def test_the_cluster_of_compose_continues_without_a_killed_node(place: Place) -> None:
    try:
        place.network()
        place.engine.call("run", "--rm", "--network", place.named("net"), BASE, "true")
    except EngineError as error:
        pytest.skip(f"{place.engine.name} makes no networks here ({str(error).strip().splitlines()[-1]})")
    for volume in ("founding", *NODES):
        place.volume(volume)
    start_service(place, "founding", detached=False)
    for name in [*NODES, "gateway"]:
        start_service(place, name)
    for name in [*NODES, "gateway"]:
        place.ready(name)
        place.inside(name, "sh", "-c", HEALTH_CHECK)
    place.inside("node1", "tidelog", "topic", "create", "visits")
    publish(place, "before")
    assert {node["state"] for node in status_of(place, "node1")["nodes"]} == {"running"}
    (visits,) = [topic for topic in status_of(place, "node1")["topics"] if topic["name"] == "visits"]
    (owner,) = [partition["owner"] for partition in visits["partitions"]]
    left = [name for name in NODES if name != owner]
    place.kill(owner)
    publish(place, "behind")
    assert values(place, left[0]) == ["before", "behind"]
    place.again(owner)
    place.ready(owner, times=2)
    deadline = time.monotonic() + GOING_ON_S
    while {node["state"] for node in status_of(place, left[0])["nodes"]} != {"running"}:
        assert time.monotonic() < deadline, "the node that was killed is not back"
        time.sleep(0.5)
    assert values(place, owner) == ["before", "behind"]
    assert [place.stop(name) for name in ("gateway", *NODES)] == [0] * 4
