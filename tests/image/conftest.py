"""The image of this folder's tests, and the engine that runs it."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image.engine import BASE, Engine, Place, find_engine

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 800


@pytest.fixture(scope="session")
def engine() -> Engine:
    found = find_engine()
    if found is None:
        pytest.skip("no engine: neither docker with its daemon nor podman answers here")
    if found.refuses("image", "inspect", BASE) and (why := found.refuses("pull", BASE)):
        pytest.skip(f"no base image: {BASE} is not here and cannot be pulled ({why})")
    # Without permission to start containers, as in many containers, the image cannot be tested.
    if why := found.refuses("run", "--rm", "--network", "none", *found.sealed(), BASE, "true"):
        pytest.skip(f"{found.name} starts no container here ({why})")
    return found


@pytest.fixture(scope="session")
def image(engine: Engine) -> Iterator[str]:
    """Build the image, unless an existing one is named."""
    if there := os.environ.get("TIDELOG_TEST_IMAGE"):
        yield there
        return
    name = f"localhost/tidelog-test-{uuid.uuid4().hex[:12]}"
    command = ["make", "image", f"IMAGE={name}", f"ENGINE={engine.name}"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    built = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    assert built.returncode == 0, f"{built.stdout[-3000:]}{built.stderr[-3000:]}"
    yield name
    engine.refuses("rmi", name)


@pytest.fixture
def place(engine: Engine, image: str) -> Iterator[Place]:
    with Place(engine, image) as made:
        yield made
