"""The report of a load test: one self-contained HTML file with tables and SVG charts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog_loadtest.users.thresholds import AGGREGATED, Figures, Moment, Verdict

Line = Sequence[tuple[float, float]]

WIDTH: Final = 860
HEIGHT: Final = 240
LEFT: Final = 64
BOTTOM: Final = 28
TOP: Final = 16
COLOURS: Final = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#0a7ea4", "#bf3989", "#57606a")
TICKS: Final = 4
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem; color: #1f2328; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .25rem .75rem; border-bottom: 1px solid #d1d9e0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } .bad { color: #d1242f; font-weight: 600; }
.good { color: #1a7f37; } svg { width: 100%; height: auto; } h2 { margin-top: 2rem; } .key { margin-right: 1rem; }
"""


def report(
    title: str,
    facts: Mapping[str, str],
    figures: Sequence[Figures],
    moments: Sequence[Moment],
    verdicts: Sequence[Verdict],
) -> str:
    """Return the page.

    Args:
        title: the heading.
        facts: name -> value of the conditions of the run.
        figures: measurements of each kind of request.
        moments: measurements of each second.
        verdicts: results of the limits.
    """
    broken = sum(not verdict.is_kept for verdict in verdicts)
    verdict = (
        f'<p class="bad">{broken} of {len(verdicts)} limits exceeded.</p>'
        if broken
        else f'<p class="good">All {len(verdicts)} limits kept.</p>'
    )
    names = [each.name for each in figures]
    whole = [moment for moment in moments if moment.name == AGGREGATED]
    pictures = (
        ("Users", "", {"users": [(moment.at_s, float(moment.users)) for moment in whole]}),
        ("Requests per second", "", {name: _line(moments, name, "per_s") for name in names}),
        ("Response time, 95th percentile", "ms", {name: _line(moments, name, "p95_ms") for name in names}),
        ("Failures per second", "", {"failures": [(moment.at_s, moment.failures_per_s) for moment in whole]}),
    )
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style>',
        f"<h1>{_text(title)}</h1>{verdict}",
        _table(("", ""), list(facts.items()), 9),
        "<h2>Limits</h2>",
        _table(("limit", "found", ""), [(v.what, v.found, "kept" if v.is_kept else "not kept") for v in verdicts], 9),
        "<h2>Requests</h2>",
        _table(
            ("kind", "requests", "failures", "per second", "p50 ms", "p95 ms", "p99 ms"),
            [
                (
                    each.name,
                    f"{each.requests:,}",
                    f"{each.failures:,}",
                    f"{each.per_s:,.1f}",
                    *(f"{value:,.0f}" for value in (each.p50_ms, each.p95_ms, each.p99_ms)),
                )
                for each in figures
            ],
            1,
        ),
    ]
    parts += [f"<h2>{_text(heading)}</h2>{picture(heading, lines, unit)}" for heading, unit, lines in pictures]
    return "\n".join([*parts, "</html>"]) + "\n"


def picture(title: str, lines: Mapping[str, Line], unit: str) -> str:
    """Return a line chart over the seconds of the run as SVG, with a legend."""
    points = [point for line in lines.values() for point in line]
    end = max((at for at, _ in points), default=1) or 1
    top = _round_up(max((value for _, value in points), default=0))
    across, up = WIDTH - LEFT, HEIGHT - BOTTOM - TOP

    def x(at: float) -> float:
        return LEFT + across * at / end

    def y(value: float) -> float:
        return TOP + up * (1 - value / top)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(title)}" font-size="12" fill="#57606a">'
    ]
    for tick in range(TICKS + 1):
        value, at = top * tick / TICKS, end * tick / TICKS
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH}" stroke="#d1d9e0"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,g} {unit}</text>')
        anchor = "end" if tick == TICKS else "middle"
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{at:,.0f} s</text>')
    key = []
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        key.append(f'<span class="key" style="color:{colour}">&#9632; {_text(name)}</span>')
    return "".join([*parts, "</svg><p>", *key, "</p>"])


def _line(moments: Sequence[Moment], name: str, what: str) -> Line:
    values = [(moment.at_s, getattr(moment, what)) for moment in moments if moment.name == name]
    return [(at, float(value)) for at, value in values if value is not None]


def _round_up(value: float) -> float:
    """Return the value rounded up to 1, 2 or 5 times a power of ten; at least 1."""
    step = 1.0
    while step * 10 <= value:
        step *= 10
    return next((step * factor for factor in (1, 2, 5, 10) if step * factor >= value), step)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{_kind(text, is_number=number >= numbers_from)}>{_text(text)}</{tag}>"
            for number, text in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{cells(head, 'th')}</tr>{body}</table>"


def _kind(text: str, *, is_number: bool) -> str:
    if text == "not kept":
        return ' class="bad"'
    return ' class="n"' if is_number else ""


def _text(text: str) -> str:
    return html.escape(text)
