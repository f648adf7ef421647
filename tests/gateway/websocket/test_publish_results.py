from __future__ import annotations

from typing import Any

import orjson

from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.ws_protocol import MESSAGE_BYTES_MAX
from tidelog_gateway.websocket.publish_results import SHORT_DETAIL, bounded_answer


def answer(failed: int) -> dict[str, Any]:
    error = Problem(429, "overloaded", "d" * 300, retryable=True).brief()
    return {"results": [{"partition": 0, "offset": 7}, *({"error": error} for _ in range(failed))]}


def test_the_longest_answer_to_a_publish_fits_into_a_message() -> None:
    bounded = bounded_answer(answer(9_999), bytes_max=1_000_000)
    assert len(orjson.dumps({"id": 2**53 - 1, "ok": bounded})) < MESSAGE_BYTES_MAX
    assert len(bounded["results"]) == 10_000
    assert bounded["results"][0] == {"partition": 0, "offset": 7}
    assert bounded["results"][1]["error"]["detail"] == "d" * 300
    assert bounded["results"][2]["error"] == {
        "code": "overloaded", "status": 429, "retryable": True, "detail": SHORT_DETAIL
    }  # fmt: skip


def test_an_answer_that_fits_is_not_changed() -> None:
    whole = answer(10)
    assert bounded_answer(whole, bytes_max=1_000_000) is whole
