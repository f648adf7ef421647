"""Conditions as text, such as `arr_delay > 190 and carrier in ('UA', 'AA')`: a part of SQL.

    or:        and [OR and]...
    and:       not [AND not]...
    not:       NOT not | ( or ) | STARTS_WITH(name, value) | test
    test:      name | name operator value | value operator name
               | name [NOT] IN (value, ...) | name [NOT] BETWEEN value AND value | name IS [NOT] NULL
    operator:  = == != <> < <= > >=
    value:     number | 'text' | x'bytes' | TRUE | FALSE | DATE 'text' | TIMESTAMP 'text'
    name:      word | "any name" | name.name

Words of the grammar may be written in upper or lower case. A quote within quotes is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

from tidelog_proto.filters.conditions import And, Comparison, Condition, Not, Or, StartsWith
from tidelog_proto.filters.expression import Operator
from tidelog_proto.filters.filter_limits import FILTER_BYTES_MAX, FilterError
from tidelog_proto.schema.schema_error import shown

_DEPTH_MAX: Final = 64
"""Maximum number of parentheses and NOTs around a condition; expressions have far fewer levels."""
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?!\w)
    |(?P<bytes>[xX]'(?:[0-9a-fA-F]{2})*')
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")+")
    |(?P<word>[^\W\d]\w*)
    |(?P<sign><=|>=|<>|!=|==|[=<>(),.])""",
    re.VERBOSE,
)
_OPERATORS: Final = {
    "=": Operator.EQUAL,
    "==": Operator.EQUAL,
    "!=": Operator.NOT_EQUAL,
    "<>": Operator.NOT_EQUAL,
    "<": Operator.LESS,
    "<=": Operator.LESS_OR_EQUAL,
    ">": Operator.GREATER,
    ">=": Operator.GREATER_OR_EQUAL,
}
_SWAPPED: Final = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
}
_WORDS: Final = frozenset({"and", "or", "not", "in", "is", "null", "true", "false", "between"})
"""Not names of fields without quotes."""
_A_VALUE: Final = "a value (a number, 'text', x'bytes', true or false)"


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The word in lower case, or the sign."""
        return self.text.lower() if self.kind in {"word", "sign"} else ""


def condition_of_text(text: str) -> Condition:
    """Return the condition that a text states.

    Raises:
        FilterError: the text is not a condition; the message has the position.
    """
    if len(text) > FILTER_BYTES_MAX:
        raise FilterError(f"the filter has {len(text)} characters, at most {FILTER_BYTES_MAX} are allowed")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        """Return the condition of the text."""
        condition = self._or()
        if self._now.kind != "end":
            self._fail("AND, OR or the end")
        return condition

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._now
        if token.kind != "end":
            self._at += 1
        return token

    def _take(self, word: str) -> bool:
        found = self._now.word == word
        if found:
            self._at += 1
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._fail(word.upper())

    def _fail(self, expected: str) -> NoReturn:
        token = self._now
        got = "the end" if token.kind == "end" else shown(token.text)
        raise FilterError(f"the filter has {got} at character {token.at + 1}; expected {expected}")

    def _or(self) -> Condition:
        return self._list("or", self._and, Or)

    def _and(self) -> Condition:
        return self._list("and", self._not, And)

    def _list(
        self, word: str, inner: Callable[[], Condition], kind: Callable[[tuple[Condition, ...]], Condition]
    ) -> Condition:
        found = [inner()]
        while self._take(word):
            found.append(inner())
        return found[0] if len(found) == 1 else kind(tuple(found))

    def _not(self) -> Condition:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise FilterError(
                f"the filter has more than {_DEPTH_MAX} levels at character {self._now.at + 1}; remove parentheses"
            )
        condition = self._primary()
        self._depth -= 1
        return condition

    def _primary(self) -> Condition:
        if self._take("not"):
            return Not(self._not())
        if self._take("("):
            condition = self._or()
            self._expect(")")
            return condition
        if self._now.word == "starts_with" and self._tokens[self._at + 1].word == "(":
            return self._starts_with()
        if self._is_value():
            value = self._value()
            operator = self._operator()
            return Comparison(self._name(), _SWAPPED.get(operator, operator), (value,))
        return self._test(self._name())

    def _starts_with(self) -> Condition:
        self._at += 2
        name = self._name()
        self._expect(",")
        prefix = self._value()
        self._expect(")")
        return StartsWith(name, prefix)

    def _test(self, name: str) -> Condition:
        if self._take("is"):
            is_not = self._take("not")
            self._expect("null")
            return Comparison(name, Operator.IS_NOT_NULL if is_not else Operator.IS_NULL)
        if self._now.text in _OPERATORS:
            return Comparison(name, self._operator(), (self._value(),))
        negated = self._take("not")
        condition: Condition
        if self._take("in"):
            condition = Comparison(name, Operator.IS_IN, self._values())
        elif self._take("between"):
            low = self._value()
            self._expect("and")
            ends = (Operator.GREATER_OR_EQUAL, low), (Operator.LESS_OR_EQUAL, self._value())
            condition = And(tuple(Comparison(name, operator, (value,)) for operator, value in ends))
        elif negated:
            self._fail("IN or BETWEEN")
        else:
            return Comparison(name, Operator.EQUAL, (True,))
        return Not(condition) if negated else condition

    def _values(self) -> tuple[Any, ...]:
        self._expect("(")
        found = [self._value()]
        while self._take(","):
            found.append(self._value())
        self._expect(")")
        return tuple(found)

    def _operator(self) -> Operator:
        operator = _OPERATORS.get(self._now.text)
        if operator is None:
            self._fail("an operator such as = or <")
        self._at += 1
        return operator

    def _is_value(self) -> bool:
        token = self._now
        if token.word in {"date", "timestamp"}:
            return self._tokens[self._at + 1].kind == "text"
        return token.kind in {"number", "text", "bytes"} or token.word in {"true", "false"}

    def _value(self) -> Any:
        if not self._is_value():
            self._fail("a value: test for null with IS NULL" if self._now.word == "null" else _A_VALUE)
        token = self._next()
        if token.kind == "number":
            return Decimal(token.text)
        if token.kind == "bytes":
            return bytes.fromhex(token.text[2:-1])
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if token.word in {"date", "timestamp"}:
            return self._value()  # the type of the field decides how the text is read
        return token.word == "true"

    def _name(self) -> str:
        parts = [self._name_part()]
        while self._take("."):
            parts.append(self._name_part())
        return ".".join(parts)

    def _name_part(self) -> str:
        token = self._now
        if token.kind == "quoted":
            self._at += 1
            return token.text[1:-1].replace('""', '"')
        if token.kind != "word" or token.word in _WORDS:
            self._fail("the name of a field" + (" (in double quotes)" if token.word in _WORDS else ""))
        self._at += 1
        return token.text


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            part = text[at : at + 1]
            why = "a quote that is not closed" if part in "'\"" else "a character that is not part of a filter"
            raise FilterError(f"the filter has {shown(part)} at character {at + 1}: {why}")
        kind = match.lastgroup or ""
        if kind != "space":
            found.append(_Token(kind, match[0], at))
        at = match.end()
    return [*found, _Token("end", "", len(text))]
