"""JSON texts as people and programs write them, which a parser followed by a writer would change."""

from __future__ import annotations

from hypothesis import strategies as st

EXAMPLES = (
    "1.10",
    "-0",
    "-0.0",
    "1e999",
    "1E-7",
    "12345678901234567.89",
    "9007199254740993",
    "18446744073709551616",
    "1" * 1000,
    '{"b":1,"a":2,"b":3}',
    '{"a" : [ 1.50 , 2 ] }',
    '"\\u0041\\/\\ud83d\\ude00"',
    '{"val\\u0075e":1.0}',
    "[" * 128 + "]" * 128,
)
"""Each comes back otherwise from a parser and a writer, or is at a limit."""

NOT_JSON = (
    b"NaN",
    b"-Infinity",
    b"[1,]",
    b"01",
    b"1.",
    b"'a'",
    b"1-" + b"x" * 60,
    b'"' + b"x" * 200_000 + b'"-"' + b"x" * 200_000 + b'"-',
    b'"\\ud800"',
    b'"\\\\\\udc00"',
    b'"\\udc00\\ud800"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\n"',
    b"\xef\xbb\xbf{}",
    b'{"a":1} {}',
    b"1" * 1001,
    b'["a", -0.' + b"1" * 999 + b"]",
    b"[" * 129 + b"]" * 129,
    b'{"a":' * 129 + b"1" + b"}" * 129,
    b"[" * 100_000 + b"]" * 100_000,
    '{"a":1}'.encode("utf-16"),
)

_space = st.sampled_from(["", "", "", " ", "\t ", "  "])
_digits = st.integers(0, 10**25).map(str)
numbers = st.builds(
    lambda minus, whole, fraction, exponent: minus + whole + fraction + exponent,
    st.sampled_from(["", "-"]),
    _digits,
    st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=20).map(".{}".format)),
    st.sampled_from(["", "", "", "e5", "E+07", "e-3", "e400"]),
)
_characters = st.one_of(
    st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters='"\\'),
    st.sampled_from(["\\n", "\\/", '\\"', "\\\\", "\\u0041", "\\ud83d\\ude00", "\\u005c", "{", "]", ",", "value"]),
)
strings = st.lists(_characters, max_size=6).map(lambda parts: f'"{"".join(parts)}"')


def _array(items: list[str], space: str) -> str:
    return f"[{space}{f'{space},{space}'.join(items)}{space}]"


def _object(pairs: list[tuple[str, str]], space: str) -> str:
    return f"{{{space}{f'{space},{space}'.join(f'{name}{space}:{space}{value}' for name, value in pairs)}{space}}}"


values = st.recursive(
    st.one_of(numbers, strings, st.sampled_from(["true", "false", "null"])),
    lambda parts: st.one_of(
        st.builds(_array, st.lists(parts, max_size=3), _space),
        st.builds(_object, st.lists(st.tuples(strings, parts), max_size=3), _space),
    ),
    max_leaves=8,
)
objects = st.builds(_object, st.lists(st.tuples(strings, values), max_size=4), _space)
"""Members may repeat."""
