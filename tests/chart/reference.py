"""Writes docs/configuration.md: every key with what it takes, its default and what it is for."""

import json
import re
from collections.abc import Iterator

from chart.keys import Group, Key, groups
from holdfast.settings.reloading import take_up

_INTRODUCTION = """\
# Configuration

Every key with its default, and when to change it. The defaults fit most nodes: to begin, set none. `make chart` writes this page from the settings'
type: do not edit it. The daemon reads a YAML file (`--config FILE`, or `HOLDFAST_CONFIG=FILE`; the chart writes `config` of its values there), then the
environment, then flags; a later one wins:

    holdfast run --config /etc/holdfast/config.yaml --set gate.wait=10s

`--set KEY=VALUE` takes every key below. In the environment a key is called `HOLDFAST_` and its path: `gate.wait` is `HOLDFAST_GATE_WAIT`, `stateDir`
is `HOLDFAST_STATE_DIR`; a list is YAML (`[a, b]`) or `a,b`. `run` also has `--state-dir` (`stateDir`), `--http-port` (`http.port`) and
`--log-level` (`log.level`). The variables, flags and file of NVIDIA's device plugin are read where they mean the same
([which wins](nvidia.md#environment-and-flags)). What cannot work is refused at the start,
with the path of the key. `holdfast config` prints every setting with its value, `holdfast config --schema` the JSON schema of the file.

The column *change* says [how a running daemon applies another value](operations.md#change-the-configuration): *live*, by a *restart* of the daemon in its
process, or by another *pod*.

A duration is a number of seconds, or text such as `250ms`, `30s`, `1h30m`. A path is absolute and without `..`. Text has no control characters but tabs
and line ends. A pattern has `*` and `?`.
"""


_SHORT = (
    (r"^list in which each is ", "list of "),
    (r"an absolute path without `\.\.`(?: or a comma)?, such as \S+", "path"),
    (
        r"(?:an absolute path|the absolute path of a file) such as \S+?, or empty text",
        "path, or empty",
    ),
    (r"an absolute path such as \S+", "path"),
    (r"text without control characters", "text"),
    (r"a pattern such as `\S+` or `\S+`", "pattern"),
    (r"a resource name such as \S+?(?=,|$)", "resource name"),
    (r"`true` or `false`", "boolean"),
)
"""The forms that many keys have, as an error tells them, and in the table."""


def page() -> str:
    """Return the text of the page."""
    return _INTRODUCTION + "".join(_group(each) for each in groups())


def _group(group: Group) -> str:
    title = f"`{group.path}`" if group.path else "The top level"
    return f"\n## {title}\n\n{group.about}\n\n" + "\n".join(_table(group)) + "\n"


def _table(group: Group) -> Iterator[str]:
    yield "| key | takes | default | change | meaning |"
    yield "|---|---|---|---|---|"
    for key in group.keys:
        kind = _takes(key.kind)
        how = take_up(key.path.replace("[]", "")).value
        yield f"| `{key.path}` | {kind} | {_default(key)} | {how} | {key.meaning} |"


def _takes(kind: str) -> str:
    for form, short in _SHORT:
        kind = re.sub(form, short, kind)
    return kind.replace("|", "\\|")


def _default(key: Key) -> str:
    if key.default is None:
        return "none" if "nothing" in key.kind else "required"
    if key.kind.startswith("duration") and isinstance(key.default, float):
        return f"{key.default:g} s"
    if key.default in ("", []):
        return "empty"
    return f"`{json.dumps(key.default) if not isinstance(key.default, str) else key.default}`"
