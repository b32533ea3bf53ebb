"""Writes docs/configuration.md: every key with what it takes, its default and what it is for."""

import json
from collections.abc import Iterator

from chart.keys import Group, Key, groups
from holdfast.settings import variable
from holdfast.settings.nvidia import VARIABLES

_INTRODUCTION = """\
# Configuration

Every key, written from the settings' type by `make chart`; do not edit. The daemon reads a YAML file (`holdfast run --config FILE`, or
`HOLDFAST_CONFIG=FILE`; the chart puts `config` of its values there), then the environment, then flags, the later over the earlier:

    holdfast run --config /etc/holdfast/config.yaml --set gate.wait=10s

`--set KEY=VALUE` takes every key below, and every command takes it that reads the configuration. `run` has three flags besides:
`--state-dir` (`stateDir`), `--http-port` (`http.port`), `--log-level` (`log.level`). Variables, flags and the file of NVIDIA's device
plugin are read too where they mean the same ([nvidia.md](nvidia.md)), and ours win over them. An unknown key, a wrong type and what
cannot work are refused at the start with the path of the key. `holdfast config` prints all of it with its values, `holdfast config
--schema` the JSON schema of the file.

A duration is a number of seconds, or text such as `250ms`, `30s`, `1h30m`. A list is given in the environment as YAML (`[a, b]`) or as
`a,b`.
"""


def page() -> str:
    """Return the text of the page."""
    return _INTRODUCTION + "".join(_group(each) for each in groups())


def _group(group: Group) -> str:
    title = f"`{group.path}`" if group.path else "The top level"
    return f"\n## {title}\n\n{group.about}\n\n" + "\n".join(_table(group)) + "\n"


def _table(group: Group) -> Iterator[str]:
    listed = "[]" in group.path
    variables = "" if listed else " variable |"
    yield f"| key | takes | default |{variables} meaning |"
    yield "|---|---|---|" + ("" if listed else "---|") + "---|"
    for key in group.keys:
        variables = "" if listed else f" {_variables(key.path)} |"
        kind = key.kind.replace("|", "\\|")
        yield f"| `{key.path}` | {kind} | {_default(key)} |{variables} {key.meaning} |"


def _variables(path: str) -> str:
    others = [name for name, meant in VARIABLES.items() if meant == path]
    return ", ".join(f"`{name}`" for name in (variable(path), *others))


def _default(key: Key) -> str:
    if key.default is None:
        return "none" if "nothing" in key.kind else "required"
    if key.kind.startswith("duration") and isinstance(key.default, float):
        return f"{key.default:g} s"
    if key.default in ("", []):
        return "empty"
    return f"`{json.dumps(key.default) if not isinstance(key.default, str) else key.default}`"
