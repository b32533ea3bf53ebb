"""Writes docs/configuration.md: every key with what it takes, its default and what it is for."""

import json
from collections.abc import Iterator

from chart.keys import Group, Key, groups
from holdfast.settings.reloading import take_up

_INTRODUCTION = """\
# Configuration

Every key with its default, and when to change it. `make chart` writes this page from the settings' type: do not edit it. The daemon reads a
YAML file (`holdfast run --config FILE`, or `HOLDFAST_CONFIG=FILE`; the chart writes `config` of its values there), then the environment, then
flags. A later source overrides an earlier one:

    holdfast run --config /etc/holdfast/config.yaml --set gate.wait=10s

`--set KEY=VALUE` takes every key below. In the environment a key is called `HOLDFAST_` and its path: `gate.wait` is `HOLDFAST_GATE_WAIT`, `stateDir`
is `HOLDFAST_STATE_DIR`; a list is YAML (`[a, b]`) or `a,b`. `run` also has `--state-dir` (`stateDir`), `--http-port` (`http.port`) and
`--log-level` (`log.level`). The variables, flags and file of NVIDIA's device plugin are read where they mean the same
([which wins](nvidia.md#environment-and-flags)). An unknown key, a wrong type or a value that cannot work is refused at the start, with the path of the key. `holdfast
config` prints every setting with its value, `holdfast config --schema` the JSON schema of the file.

The column *change* says [how a running daemon applies another value](operations.md#change-the-configuration): *live*, by a *restart* of the daemon in its
process, or by another *pod*.

A duration is a number of seconds, or text such as `250ms`, `30s`, `1h30m`; more than 100 years count as 100. Text
without control characters may have tabs and line ends. The defaults fit most nodes: to begin, set none.
"""


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
        kind = key.kind.replace("|", "\\|")
        how = take_up(key.path.replace("[]", "")).value
        yield f"| `{key.path}` | {kind} | {_default(key)} | {how} | {key.meaning} |"


def _default(key: Key) -> str:
    if key.default is None:
        return "none" if "nothing" in key.kind else "required"
    if key.kind.startswith("duration") and isinstance(key.default, float):
        return f"{key.default:g} s"
    if key.default in ("", []):
        return "empty"
    return f"`{json.dumps(key.default) if not isinstance(key.default, str) else key.default}`"
