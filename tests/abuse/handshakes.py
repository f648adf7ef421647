"""Half-open TLS handshakes from one address, and the connect time of a client from another address during them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.abuse.measured import Measured, settled, tell, watched
from tests.abuse.polite import polite
from tests.abuse.probe import Probe
from tests.abuse.stand import environment
from tests.authority import Authority

from tidelog_cli.up.child_processes import running
from tidelog_proto.tls.reloaded_files import TlsFiles

NAME: Final = "TLS handshakes left half open"
FLOOD: Final = "127.0.0.2"


def client_hello() -> bytes:
    """Return the first flight of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    stream = context.wrap_bio(incoming, outgoing, server_hostname="node")
    with contextlib.suppress(ssl.SSLWantReadError):
        stream.do_handshake()
    return outgoing.read()


async def _leave_half_open(port: int, hello: bytes, found: Measured) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(FLOOD, 0))
            writer.write(hello)
            await reader.read(1)  # the server has done its part
            found.answered += 1
            writer.transport.abort()


async def judged(directory: Path, *, seconds: float, connections: int, as_json: bool) -> int:
    """Measure; return 1 if a bound is broken."""
    files: TlsFiles = Authority(directory / "ca").files("node", "a")
    config = directory / "tls.toml"
    config.write_text(
        f'[node]\ntls_cert_file = "{files.cert}"\ntls_key_file = "{files.key}"\ntls_ca_file = "{files.ca}"\n'
    )
    probe, found = Probe(directory / "tls.probe"), Measured(NAME)
    data = str(directory / "tls")
    arguments = ("node", "--config", str(config), "--data", data, "--port", "0", "--management-port", "0")
    with (directory / "tls.log").open("ab") as log:
        measured = (str(probe.path), *arguments)
        module = "tests.abuse.probed"
        async with AsyncExitStack() as stack:
            child = await stack.enter_async_context(
                running("node", measured, module=module, log=log, environ=environment())
            )
            probe.pid, port = child.process.pid, child.ready["port"]
            beside = await stack.enter_async_context(polite("tls", port, str(files.ca)))
            await settled(probe)
            found.quiet_s, found.failed = await beside.measure(seconds)
            probe.reset()
            hello = client_hello()
            floods = [asyncio.create_task(_leave_half_open(port, hello, found)) for _ in range(16 * connections)]
            async with watched(probe) as peak:
                found.flooded_s, failed = await beside.measure(seconds)
            found.failed += failed
            found.flood_stall_s, found.flood_bytes = probe.read().stall_s, peak.grown_bytes
            for task in floods:
                task.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
    tell(found, as_json=as_json)
    return bool(found.faults())
