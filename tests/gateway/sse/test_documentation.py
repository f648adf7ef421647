"""The example of `docs/streams.md` is run, and its tables name what there is."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.sse.route import router
from tidelog_proto.batch.record_batch import columns_of

PAGE = (Path(__file__).parents[3] / "docs" / "streams.md").read_text()


async def test_the_example_prints_the_shown_output(serve: Serve, log: FakeLog) -> None:
    example = re.search(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert example is not None
    log.logs["visits"] = [[], []]
    await log.append("visits", 0, columns_of([b"first", b"second"]))
    await log.append("visits", 1, columns_of([b"third"]))
    async with serve() as served:
        code = example[1].replace("http://127.0.0.1:8080", served.http)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", code, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    assert (process.returncode, output.decode()) == (0, example[2])


def test_every_parameter_is_named() -> None:
    (route,) = router.routes
    fields = route.dependant  # type: ignore[attr-defined]
    names = {field.alias for field in (*fields.query_params, *fields.header_params)}
    table = PAGE[PAGE.index("## Parameters") : PAGE.index("## Events")]
    assert names == set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE))))
