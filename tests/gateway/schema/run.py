"""Generated requests, valid and invalid by the API's own description, to a node and a gateway.

    python -m tests.gateway.schema.run --seconds 600 --seed 7

Schemathesis generates examples, the bounds of each parameter and field, random values, and chains of requests that use
earlier answers. It compares each answer with the description.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.broker.keyed import ADMIN
from tests.gateway.secured import secured

ROOT = Path(__file__).parents[3]
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


async def check(path: Path, *options: str, output: Any = None) -> tuple[int, str]:
    """Run schemathesis with a gateway whose data is in a directory; return its exit code and output."""
    async with secured(path, fetch_wait_ms_max=2_000) as gateway:
        security = gateway.admin.security
        kept = [rule.rule_id for rule in await security.rules()] + [key.key_id for key in await security.api_keys()]
        command = [sys.executable, "-m", "schemathesis.cli", f"--config-file={CONFIGURATION}", "run"]
        command += [f"http://127.0.0.1:{gateway.port}/openapi.json", "--no-color", "--checks=all"]
        command += [f"--header=Authorization: Bearer {ADMIN}", *options]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=output or asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "SCHEMA_RUN_KEPT": ",".join(kept)},
        )
        try:
            printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        return process.returncode, (printed or b"").decode()


def main() -> int:
    """Run for the requested time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    given = (f"--max-time={options.seconds}", f"--seed={options.seed}", "--max-examples=500")
    with tempfile.TemporaryDirectory() as path:
        code, _ = asyncio.run(check(Path(path), *given, output=sys.stdout))
    return code


if __name__ == "__main__":
    sys.exit(main())
