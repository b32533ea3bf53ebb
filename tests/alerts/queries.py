"""What a PromQL expression names: metrics, labels and literal values; and what the daemon has."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from fakes.exposed import exposed_metrics

REPOSITORY = Path(__file__).parents[2]
_SELECTOR = re.compile(r"\b(holdfast_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SCRAPED = frozenset({"node", "instance", "le"})
"""Labels that scraping and histograms add."""


class Selector(Struct, frozen=True):
    """One metric as an expression names it, with the values that it matches labels against."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def selectors(expression: str) -> Iterator[Selector]:
    """Yield each metric of ours that *expression* names."""
    for name, matchers in _SELECTOR.findall(expression):
        yield Selector(name, tuple(_MATCHER.findall(matchers)))


def grouped(expression: str) -> set[str]:
    """Return the labels that *expression* groups or joins by."""
    return {
        label for labels in _GROUPED.findall(expression) for label in re.findall(r"\w+", labels)
    }


def exposed() -> dict[str, frozenset[str]]:
    """Return each name that a query can use, with its labels."""
    found: dict[str, frozenset[str]] = {}
    for name, kind, labelled in exposed_metrics():
        labels = frozenset(labelled)
        if kind == "histogram":
            found |= {f"{name}_sum": labels, f"{name}_count": labels}
            found[f"{name}_bucket"] = labels | {"le"}
        else:
            found[name] = labels
    return found


def values_told(metric: str) -> set[str]:
    """Return what docs/metrics.md says in backticks about *metric*: its labels' values are there."""
    base = re.sub(r"_(sum|count|bucket)$", "", metric)
    page = (REPOSITORY / "docs/metrics.md").read_text("utf-8")
    row = next(
        line for line in page.splitlines() if line.startswith((f"| `{base}` ", f"| `{metric}` "))
    )
    return set(re.findall(r"`([^`]+)`", row))


def problems(expression: str) -> list[str]:
    """Return what *expression* names that the daemon does not have."""
    known, found = exposed(), []
    every: set[str] = set(SCRAPED)
    for each in selectors(expression):
        if each.metric not in known:
            found.append(f"no metric {each.metric}")
            continue
        labels = known[each.metric] | {"node", "instance"}
        every |= labels
        for label, _, text in each.matchers:
            if label not in labels:
                found.append(f"{each.metric} has no label {label}")
            elif label not in {"node", "instance", "resource"}:
                told = values_told(each.metric)
                found += [
                    f"{each.metric} has no {label} {value}"
                    for value in text.split("|")
                    if value not in told
                ]
    found += [f"nothing has a label {label}" for label in grouped(expression) - every]
    return found
