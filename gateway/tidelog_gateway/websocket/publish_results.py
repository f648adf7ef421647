"""The answer to a `pub`, bounded: errors of thousands of records are shortened where they would make it too long."""

from __future__ import annotations

from typing import Any, Final

import orjson

SHORT_DETAIL: Final = "as above"
"""As that of the first result with the same code."""


def bounded_answer(answer: dict[str, Any], *, bytes_max: int) -> dict[str, Any]:
    """Return an answer of `publish.answer_of` in which errors after the first of a code have a short detail.

    It is returned as it is where it is at most `bytes_max` bytes long as JSON.
    """
    if len(orjson.dumps(answer)) <= bytes_max:
        return answer
    seen: set[str] = set()
    results: list[dict[str, Any]] = []
    for result in answer["results"]:
        error = result.get("error")
        if error is None or error["code"] not in seen:
            seen |= set() if error is None else {error["code"]}
            results.append(result)
        else:
            short = {name: error[name] for name in ("code", "status", "retryable")}
            results.append({"error": short | {"detail": SHORT_DETAIL}})
    return {**answer, "results": results}
