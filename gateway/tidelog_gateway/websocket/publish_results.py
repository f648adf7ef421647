"""Size limit of the answer to a `pub`: repeated errors are shortened if the answer would be too long."""

from __future__ import annotations

from typing import Any, Final

import orjson

SHORT_DETAIL: Final = "as above"
"""Text that replaces a repeated detail; the first result with the same code has the full text."""


def bounded_answer(answer: dict[str, Any], *, bytes_max: int) -> dict[str, Any]:
    """Shorten the details of all errors but the first of each code, if an answer is longer than `bytes_max` as JSON."""
    if len(orjson.dumps(answer)) <= bytes_max:
        return answer
    codes: set[str] = set()
    results: list[dict[str, Any]] = []
    for result in answer["results"]:
        error = result.get("error")
        if error is None or error["code"] not in codes:
            codes |= set() if error is None else {error["code"]}
            results.append(result)
        else:
            short = {name: error[name] for name in ("code", "status", "retryable")}
            results.append({"error": short | {"detail": SHORT_DETAIL}})
    return {**answer, "results": results}
