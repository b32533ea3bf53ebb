"""Draws who had which device when, as SVG: one row for each device, time from left to right.

It needs the standard library alone and does nothing but compute: kubectl-holdfast has this very
file by a link, so that one drawing serves a node and all nodes. Its records are those of
`holdfast history -o json`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from math import ceil
from typing import Any

Row = Mapping[str, Any]

ALLOCATED = "allocated"
PASSED = ("gate passed", "claim prepared")
"""What the evidence of a lock begins with: from the first to one of the second its pod waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecords:
    """The records of a node, the oldest first.

    `name` is empty where there is only one node. `problem` says why there are no records.
    """

    name: str = ""
    rows: Sequence[Row] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From when to when a device was in one state, and who had it; `changes` are merged in it.

    Times are in seconds since the epoch. `who` is the claim, or the pod as the records have it.
    """

    begin: float
    end: float
    kind: str
    who: str = ""
    changes: int = 1


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a state is drawn and called: its colours on a light and a dark page, and its pattern."""

    code: str
    label: str
    light: tuple[str, str] = ("", "")
    dark: tuple[str, str] = ("", "")
    pattern: str = ""


_UNKNOWN, _FREE, _WAITS, _HELD = "unknown", "free", "waits", "held"
# The worst last: of several in one pixel the last one is drawn.
_KINDS = {
    _UNKNOWN: _Kind("u", "no record"),
    _FREE: _Kind("n", "free"),
    _HELD: _Kind("h", "held", light=("#b6d4f7", "#3b6fb0"), dark=("#1f4b82", "#6ea8e6")),
    _WAITS: _Kind(
        "w",
        "waits to start",
        light=("#e8f1fc", "#3b6fb0"),
        dark=("#14263d", "#6ea8e6"),
        pattern="M2 3h1.4",
    ),
    "releasing": _Kind(
        "l",
        "releasing: waits to be free",
        light=("#fff1b8", "#b58900"),
        dark=("#3d3200", "#d4a72c"),
        pattern="M-1 7l8-8M-1 1l2-2M5 7l2-2",
    ),
    "reclaiming": _Kind(
        "c",
        "reclaiming",
        light=("#ffd8b5", "#bc4c00"),
        dark=("#4a1e02", "#f0883e"),
        pattern="M0 0l6 6M6 0l-6 6",
    ),
    "foreign": _Kind(
        "f",
        "foreign",
        light=("#ead7f9", "#7c3aad"),
        dark=("#33184a", "#c297eb"),
        pattern="M1.5 0v6M4.5 0v6",
    ),
    "quarantined": _Kind(
        "q",
        "quarantined",
        light=("#ffc9c4", "#a40e26"),
        dark=("#5c0d17", "#ff8b85"),
        pattern="M1 1h2v2h-2zM4 4h2v2h-2z",
    ),
}
_RANK = {name: rank for rank, name in enumerate(_KINDS)}
_OTHER = "foreign"
"""As what a state is drawn that a later daemon may have."""

_WIDTH, _MARGIN, _TOP = 1200, 16, 92
_LINE, _BAR = 22, 16
_COLUMN = 6.7
"""The width of a character, with room for fonts that are wider than most."""
_LONGEST_LABEL, _LONGEST_NAME = 36, 48
_SHORTEST = 4
"""Characters of a name without which it says nothing."""
_MOST_TICKS = 10
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(each * _MINUTE for each in (1, 2, 5, 10, 15, 30)),
    *(each * _HOUR for each in (1, 2, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 7, 14, 30, 90, 365)),
)
_UNITS = ((2 * _DAY, _DAY, "d"), (2 * _HOUR, _HOUR, "h"), (2 * _MINUTE, _MINUTE, "min"))


def plot(nodes: Sequence[NodeRecords], begin: float | None, end: float) -> str:
    """Return the picture of *nodes* from *begin* to *end*, in seconds since the epoch.

    Without *begin* it starts with the first record. What was before the first record of a device is
    drawn as unknown, so give older records too where there are any.
    """
    times = [row["at"] for node in nodes for row in node.rows]
    first = min(times, default=end) if begin is None else max(0.0, begin)
    last = max(end, *times, first + 1) if times else max(end, first + 1)
    devices = sum(len(_by_device(node.rows)) for node in nodes)
    changes = sum(first <= at <= last for at in times)
    labels = [label for node in nodes for label in _labels(_by_device(node.rows)).values()]
    widest = min(_LONGEST_LABEL, max(map(len, labels), default=0))
    scale = _Scale(first, last, left=_MARGIN + (widest + 2) * _COLUMN)
    lines = list(_lines(nodes, scale))
    height = _TOP + _LINE * max(1, len(lines)) + 2 * _MARGIN + 10
    what = f"{_counted(devices, 'device')}, {_counted(changes, 'change')}"
    period = f"{_moment(first, 0)} to {_moment(last, 0)} UTC"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="title desc">\n'
        '<title id="title">Who had which device when</title>\n'
        f'<desc id="desc">{what}, {period}. One row for each device, one block for each pod or '
        "claim, time from left to right.</desc>\n"
        f"<style>{_style()}</style>\n"
        f"<defs>{''.join(map(_pattern, _KINDS.values()))}</defs>\n"
        f'<rect class="card" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="9"/>\n'
        f'<text class="b" x="{_MARGIN}" y="26">Who had which device: {what}</text>\n'
        f'<text class="m" x="{_WIDTH - _MARGIN}" y="26" text-anchor="end">{period}</text>'
    )
    foot = (
        f'<text class="m" x="{_MARGIN}" y="{height - 12}">What is narrower than a pixel is one '
        "pixel wide, in the colour of the worst.</text>\n</svg>\n"
    )
    none = [] if lines else [_line(0, "no change of a lock in this period", "m")]
    return "\n".join((head, *_legend(), *_axis(scale, height), *lines, *none, foot))


def spans(rows: Sequence[Row], begin: float, end: float) -> list[Span]:
    """Return the states of one device from *begin* to *end* without a gap, of its *rows*.

    The pod of an Allocation may be known only later: what it had until then gets its name.
    """
    found = [Span(begin=min(begin, rows[0]["at"]), end=end, kind=_UNKNOWN)]
    for row in rows:
        who, kind = _who(row), _kind(row, found[-1].kind)
        at = max(found[-1].begin, row["at"])  # the time of day may be set back
        if row["from"] != row["to"] or _has_passed(row):  # of who had it until then
            _name(found, who)
        if kind == found[-1].kind and who in {"", found[-1].who}:
            continue
        found[-1] = replace(found[-1], end=at)
        found.append(Span(begin=at, end=end, kind=kind, who="" if kind == _FREE else who))
    clipped = (replace(each, begin=max(begin, each.begin)) for each in found)
    return [each for each in clipped if each.begin < each.end]


def merged(spans: Iterable[Span], least: float) -> list[Span]:
    """Return *spans*, with those shorter than *least* seconds merged until they are as long.

    What was merged has the kind and holder of the worst of it.
    """
    found: list[Span] = []
    short: list[Span] = []
    for span in spans:
        if span.end - span.begin >= least or span.kind == _UNKNOWN:
            found += [*_worst(short), span]
            short = []
        else:
            short.append(span)
            if span.end - short[0].begin >= least:
                found += _worst(short)
                short = []
    return [*found, *_worst(short)]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where on the picture a time is."""

    begin: float
    end: float
    left: float

    @property
    def pixel(self) -> float:
        """Return how many seconds a pixel has."""
        return (self.end - self.begin) / (_WIDTH - _MARGIN - self.left)

    def x(self, at: float) -> float:
        """Return how far from the left *at* is."""
        return self.left + (at - self.begin) / self.pixel


def _by_device(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["device"]), []).append(row)
    return dict(sorted(found.items()))


def _labels(devices: Iterable[str]) -> dict[str, str]:
    """Return what each device is called: its id, or in full where two have the same id."""
    alike: dict[str, list[str]] = {}
    for device in devices:
        alike.setdefault(device.split("/", 2)[-1], []).append(device)
    return {
        device: id_ if len(each) == 1 else device for id_, each in alike.items() for device in each
    }


def _kind(row: Row, before: str) -> str:
    """Return how what follows *row* is drawn."""
    after = str(row["to"])
    if after != _HELD:
        return after if after in _KINDS else _OTHER
    if row["from"] != _HELD:
        return _WAITS if row["evidence"] == ALLOCATED else _HELD
    return _WAITS if before == _WAITS and not _has_passed(row) else _HELD


def _has_passed(row: Row) -> bool:
    return str(row["evidence"]).startswith(PASSED)


def _who(row: Row) -> str:
    return str(row.get("claim") or row.get("pod") or "")


def _name(spans: list[Span], who: str) -> None:
    """Name the holder of the last of *spans*, as far as it is not known yet."""
    for place in range(len(spans) - 1, -1, -1):
        if spans[place].who or spans[place].kind in {_FREE, _UNKNOWN}:
            break
        spans[place] = replace(spans[place], who=who)


def _worst(spans: Sequence[Span]) -> list[Span]:
    """Return *spans* as one, none where there are none."""
    if not spans:
        return []
    worst = max(spans, key=lambda each: _RANK[each.kind])
    return [replace(worst, begin=spans[0].begin, end=spans[-1].end, changes=len(spans))]


def _lines(nodes: Iterable[NodeRecords], scale: _Scale) -> Iterator[str]:
    """Yield the rows of all devices below the names of their nodes."""
    number = 0
    for node in nodes:
        if node.name:
            told = f": {node.problem}" if node.problem else "" if node.rows else ": no change"
            yield _line(number, _text(node.name + told, int(_WIDTH / _COLUMN) - 5), "b")
            number += 1
        named = (row for row in node.rows if row.get("podName"))
        names = {str(row.get("pod")): str(row["podName"]) for row in named}
        devices = _by_device(node.rows)
        labels = _labels(devices)
        for device, rows in devices.items():
            label = _text(labels[device], _LONGEST_LABEL, end=False)
            drawn = merged(spans(rows, scale.begin, scale.end), scale.pixel)
            drawn.sort(key=lambda each: each.end - each.begin < scale.pixel)  # on top of the others
            blocks = "\n".join(filter(None, (_block(each, scale, names) for each in drawn)))
            yield f"{_line(number, label, 'r')[:-4]}\n{blocks}</g>"
            number += 1


def _line(number: int, text: str, kind: str) -> str:
    place = f'<g transform="translate(0 {_TOP + _LINE * number})">'
    return f'{place}<text class="{kind}" x="{_MARGIN}" y="12">{text}</text></g>'


def _block(span: Span, scale: _Scale, names: Mapping[str, str]) -> str:
    """Return a block with its name, as far as it fits, and what a pointer on it is told."""
    if span.kind == _FREE:
        return ""
    x = min(scale.x(span.begin), _WIDTH - _MARGIN - 1)
    width = max(1.0, scale.x(span.end) - x)
    kind = _KINDS[span.kind]
    if span.kind == _UNKNOWN:
        return f'<path class="u" d="M{x:.1f} {_BAR / 2:g}h{width:.1f}"/>'
    who = names.get(span.who, span.who).partition(" (")[0]  # without the UID
    told = f"{kind.label} {_moment(span.begin)}, {_age(span.end - span.begin)}"
    if span.changes > 1:
        told = f"{span.changes} changes; the worst: {told}"
    title = f"{_text(who, _LONGEST_NAME, end=False)} {told}".strip()
    drawn = (
        f'<path class="{kind.code}" d="M{x:.1f} 0h{width:.1f}v{_BAR}h-{width:.1f}z">'
        f"<title>{title}</title></path>"
    )
    room = int((width - 6) / _COLUMN)
    if not who or room < _SHORTEST or span.kind not in {_HELD, _WAITS}:
        return drawn
    short = who if len(who) <= room else who.rpartition("/")[2]
    return f'{drawn}<text x="{x + 4:.1f}" y="12">{_text(short, room)}</text>'


def _legend() -> Iterator[str]:
    x = float(_MARGIN)
    for name, kind in _KINDS.items():
        swatch = f'<path class="{kind.code}" d="M{x:.0f} 40h20v12h-20z"/>'
        if name == _UNKNOWN:
            swatch = f'<path class="u" d="M{x:.0f} 46h20"/>'
        yield f'{swatch}<text x="{x + 26:.0f}" y="50">{kind.label}</text>'
        x += 48 + len(kind.label) * _COLUMN


def _axis(scale: _Scale, height: int) -> Iterator[str]:
    """Yield a line and its time for each round time."""
    length = scale.end - scale.begin
    step = next((each for each in _STEPS if length / each <= _MOST_TICKS), 0)
    if not step:
        step = ceil(length / _MOST_TICKS / _STEPS[-1]) * _STEPS[-1]
    at, before = ceil(scale.begin / step) * step, ""
    while at <= scale.end:
        day, time = _moment(at, 0).split(" ")
        told = day if step >= _DAY else time[: 8 if step < _MINUTE else 5]
        if step < _DAY and day != before:
            told = f"{day[5:]} {told}"
        x, before = scale.x(at), day
        yield f'<path class="g" d="M{x:.1f} {_TOP - 8}V{height - 30}"/>'
        x = min(x, _WIDTH - _MARGIN - len(told) * _COLUMN / 2)
        yield f'<text class="m" x="{x:.1f}" y="{_TOP - 14}" text-anchor="middle">{told}</text>'
        at += step


def _pattern(kind: _Kind) -> str:
    if not kind.pattern:
        return ""
    code = kind.code
    return (
        f'<pattern id="{code}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<path class="{code}1" d="M0 0h6v6h-6z"/>'
        f'<path class="{code}2" d="{kind.pattern}"/></pattern>'
    )


def _style() -> str:
    light = "".join(_colours(each, each.light) for each in _KINDS.values() if each.light[0])
    dark = "".join(_colours(each, each.dark) for each in _KINDS.values() if each.light[0])
    filled = "".join(
        f".{each.code}{{fill:url(#{each.code})}}" for each in _KINDS.values() if each.pattern
    )
    return (
        'text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;'
        "fill:#1f2328;white-space:pre}.b{font-weight:700}.m{fill:#59636e}"
        ".card{fill:#fff;stroke:#d0d7de}.g{stroke:#d8dee4}.u{stroke:#818b98;stroke-dasharray:1 4}"
        ".n{fill:none;stroke:#818b98;stroke-width:.7}"
        f"{light}{filled}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.m{{fill:#9198a1}}"
        ".card{fill:#0d1117;stroke:#30363d}.g{stroke:#2a313c}"
        f"{dark}}}"
    )


def _colours(kind: _Kind, colours: tuple[str, str]) -> str:
    ground, line = colours
    if not kind.pattern:
        return f".{kind.code}{{fill:{ground};stroke:{line};stroke-width:.7}}"
    return (
        f".{kind.code}{{stroke:{line};stroke-width:.7}}.{kind.code}1{{fill:{ground}}}"
        f".{kind.code}2{{stroke:{line};fill:none}}"
    )


def _text(text: str, most: int = _WIDTH, *, end: bool = True) -> str:
    """Return *text* for SVG in at most *most* bytes or so; it loses its end, or its beginning.

    What does not print gets an escape, since XML cannot have it.
    """
    kept: list[str] = []
    room = most
    for each in text if end else reversed(text):
        shown = each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        cell = escape(shown, quote=False)
        room -= len(cell.encode())
        if room < 0:
            room += len(cell.encode())
            while kept and room < 1:
                room += len(kept.pop().encode())
            kept.append("\u2026")
            break
        kept.append(cell)
    return "".join(kept if end else reversed(kept))


def _moment(at: float, cut: int = 5) -> str:
    """Return a time, without its first *cut* characters: `11-23 10:04:01` without the year."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")[cut:]


def _age(seconds: float) -> str:
    for least, size, unit in _UNITS:
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
