"""Nodes and a gateway in containers with certificates and keys, started as documented in docs/containers.md."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from tests.image.engine import HEALTH_CHECK, EngineError, Place

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.machine, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "containers.md").read_text()
NODES = ("log1", "log2", "log3")

# The image's own user creates the files, so their owner is right. A real machine would get only its own files.
FOUND = """
cd /data
tidelog cluster init orders --node log1=log1 --node log2=log2 --node log3=log3
tidelog certs init orders
for n in 1 2 3; do tidelog certs issue orders node log$n --host log$n; done
tidelog certs issue orders server gateway --host gateway
(umask 077; tidelog key new --out orders/admin.key; touch orders/gate.key)
mv orders/* .
"""

# Request to the gateway, and its answer: with the administrator's key, and without any.
ASK = """
import ssl, sys, urllib.error, urllib.request
trusted = ssl.create_default_context(cafile="/etc/tidelog/ca.pem")
key = {"authorization": "Bearer " + open("/etc/tidelog/admin.key").read().strip()} if sys.argv[1:] else {}
try:
    asked = urllib.request.Request("https://gateway:8080/v1/topics", headers=key)
    print(urllib.request.urlopen(asked, timeout=20, context=trusted).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""


def documented(which: str) -> tuple[list[str], list[str]]:
    """Return the options that set something, and the command, of the container of that name on the page."""
    runs = re.findall(r"^docker run (.*)$", PAGE.replace("\\\n", " "), re.MULTILINE)
    (words,) = [shlex.split(run) for run in runs if f"--name {which} " in run and "--network host" in run]
    at = words.index("tidelog", words.index(which) + 1)
    settings = [word for before, word in pairwise(words[:at]) if before == "-e"]
    return [part for setting in settings for part in ("--env", setting)], words[at + 1 :]


def start(place: Place, name: str, which: str, options: list[str]) -> None:
    """Start a container of the page under a name that the others know it by."""
    settings, command = documented(which)
    number = name[-1]
    words = [word.replace("logN", f"log{number}").replace(".example.org", "") for word in [*settings, "\0", *command]]
    at = words.index("\0")
    files = ["--volume", f"{place.named('files')}:/etc/tidelog:ro"]
    network = place.joined(name, [*NODES, "gateway"])
    place.start(name, [*options, *files, *network, *words[:at]], words[at + 1 :])


def test_a_secured_cluster_and_its_gateway_work_as_documented(place: Place) -> None:
    try:
        place.network()
    except EngineError as error:
        pytest.skip(f"{place.engine.name} makes no networks here ({str(error).strip().splitlines()[-1]})")
    place.volume("files")
    files = ["--volume", f"{place.named('files')}:/data"]
    place.once(FOUND, files)
    for name in NODES:
        place.volume(name)
        start(place, name, "tidelog", ["--volume", f"{place.named(name)}:/data"])
    for name in NODES:
        place.ready(name)
        place.inside(name, "sh", "-c", HEALTH_CHECK)
    with pytest.raises(EngineError, match=r"certificate|TLS|encrypt"):
        place.inside("log1", "tidelog", "topic", "list", "--bootstrap", "log1")
    asking = ["env", "TIDELOG_BOOTSTRAP=log1", "TIDELOG_CA_FILE=/etc/tidelog/ca.pem"]
    with pytest.raises(EngineError, match=r"(?i)credentials|authenticat|who"):
        place.inside("log1", *asking, "tidelog", "topic", "list")
    admin = [*asking, "TIDELOG_API_KEY_FILE=/etc/tidelog/admin.key", "tidelog"]
    place.inside("log1", *admin, "topic", "create", "visits")
    key = place.inside("log1", *admin, "key", "create", "gate").strip()
    place.inside("log1", *admin, "acl", "grant", "gate", "impersonate", "cluster")
    place.once(f"printf %s {shlex.quote(key)} > /data/gate.key", files)
    start(place, "gateway", "gateway", ["--tmpfs", "/data"])
    place.ready("gateway")
    place.inside("gateway", "sh", "-c", HEALTH_CHECK)
    assert place.inside("gateway", "python", "-c", ASK).strip() == "401"
    assert "visits" in place.inside("gateway", "python", "-c", ASK, "as the administrator")
    assert [place.stop(name) for name in ("gateway", *NODES)] == [0] * 4
