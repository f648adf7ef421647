"""Publishes over HTTP through a gateway during an upgrade. A request is repeated with its idempotency key.

Gateways of builds that do not know these keys are asked without them; a record may be stored twice then.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Final

import httpx

PAUSE_S: Final = 0.02
TIMEOUT_S: Final = 30.0
NO_KEYS: Final = "idempotency_key_unsupported"
AGAIN_S: Final = 0.1


class WebLoad:
    """One publisher over HTTP.

    Args:
        url: of the gateway.
        topic: that it publishes to.
        out: takes a line for each acknowledged record, as `load.py` writes them.
    """

    def __init__(self, url: str, topic: str, out: Path) -> None:
        self.answers: Counter[str] = Counter()
        """Answers that made it try again or give up, by status and code."""
        self._url, self._topic, self._out = url, topic, out
        self._ended = False
        self._has_keys = True

    def end(self) -> None:
        """Publish nothing more after the record under way."""
        self._ended = True

    async def run(self) -> None:
        """Publish one record after the other."""
        number = 0
        with self._out.open("a", buffering=1) as file:
            async with httpx.AsyncClient(base_url=self._url, timeout=TIMEOUT_S) as http:
                while not self._ended:
                    told = await self._publish(http, f"web:{number}")
                    file.write(json.dumps(told) + "\n")
                    number += 1
                    await asyncio.sleep(PAUSE_S)

    async def _publish(self, http: httpx.AsyncClient, value: str) -> dict[str, object]:
        body = {"records": [{"value": value}]}
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                while True:
                    headers = {"idempotency-key": value} if self._has_keys else {}
                    try:
                        answer = await http.post(f"/v1/topics/{self._topic}/records", json=body, headers=headers)
                    except httpx.TransportError as error:
                        self.answers[type(error).__name__] += 1
                    else:
                        if answer.status_code == httpx.codes.OK:
                            (result,) = answer.json()["results"]
                            return {"event": "acked", "value": value, **result}
                        code = answer.json().get("code", "")
                        self.answers[f"{answer.status_code} {code}"] += 1
                        if code == NO_KEYS:
                            self._has_keys = False
                        elif answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                            return {"event": "refused", "value": value, "error": f"{answer.status_code} {code}"}
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            return {"event": "refused", "value": value, "error": "no success within a minute"}
