"""What NVIDIA's device plugin is told, by flag, variable or file, in words of this configuration.

The names are those of its v0.20. What means the same is a key (`VARIABLES`); `OTHERS` answers for
the rest: some of it needs nothing, some is refused and told what to use instead.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from msgspec import Struct

from holdfast.errors import SettingsError
from holdfast.settings.nvidia import VARIABLES

KUBELET_SOCKET = "KUBELET_SOCKET"
CONFIG_FILE = "CONFIG_FILE"
_SOCKET = "kubelet.sock"
_BOOLEANS = frozenset(
    {
        "PASS_DEVICE_SPECS",
        "GDRCOPY_ENABLED",
        "GDS_ENABLED",
        "MOFED_ENABLED",
        "FAIL_ON_INIT_ERROR",
        "IMEX_REQUIRED",
    }
)
_SHORTER = {"driver-root": "NVIDIA_DRIVER_ROOT", "dev-root": "NVIDIA_DEV_ROOT"}
"""Flags that are not called as their variable is."""
_NO_FLAG = frozenset({"DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"})
_ELSEWHERE = frozenset({"version", "resources", "flags.gfd"})
"""What its file may say that its plugin does not heed either, or another program does."""


class Other(Struct, frozen=True, kw_only=True):
    """An option without a key. `needless` are the values that ask for nothing; None: any does."""

    why: str
    needless: frozenset[str] | None = None


_NOTHING = frozenset({"", "[]", "false"})
_NO_SHARING = Other(why="a piece of hardware is granted to one pod at a time, and never shared")
OTHERS: Mapping[str, Other] = {
    "FAIL_ON_INIT_ERROR": Other(
        why="a missing driver neither ends holdfast nor blocks it: it is looked for until it comes"
    ),
    "DEVICE_DISCOVERY_STRATEGY": Other(
        why="GPUs are found by NVML alone; for Tegra, and for WSL, stay with NVIDIA's plugin",
        needless=frozenset({"", "auto", "nvml"}),
    ),
    "MPS_ROOT": _NO_SHARING,
    "SHARED_DEVICES_ALLOCATION_POLICY": _NO_SHARING,
    "CDI_FEATURE_FLAGS": Other(
        why="holdfast's CDI specs have no such features; leave it out", needless=_NOTHING
    ),
}


def flags() -> dict[str, bool]:
    """Return each of its flags, without dashes before it, and whether it can do without a value."""
    names = [*VARIABLES, *OTHERS, KUBELET_SOCKET, CONFIG_FILE]
    found = {_dashed(name): name in _BOOLEANS for name in names if name not in _NO_FLAG}
    return found | dict.fromkeys(_SHORTER, False)


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what its variables in *environ* set, by path; raise SettingsError."""
    names = dict.fromkeys((*VARIABLES, *OTHERS, KUBELET_SOCKET))
    found: dict[str, str] = {}
    for name in names:
        if name in environ:
            found |= _meaning(name, environ[name], f"the environment variable {name}")
    return found


def from_flags(given: Mapping[str, str]) -> dict[str, str]:
    """Return what its flags set, by path; raise SettingsError. *given* is by flag, as `flags`."""
    found: dict[str, str] = {}
    for flag, text in given.items():
        name = _SHORTER.get(flag, flag.replace("-", "_").upper())
        if name != CONFIG_FILE:
            found |= _meaning(name, text, f"--{flag}")
    return found


def from_file(content: Mapping[str, object], file: str) -> dict[str, str]:
    """Return what a file of its own format sets, by path; raise SettingsError."""
    version = content.get("version") or "v1"
    if version != "v1":
        raise SettingsError(
            f"cannot use {file}: version: {version!r} is not that of its plugin, v1"
        )
    known = {_plain(name): name for name in (*VARIABLES, *OTHERS)}
    found: dict[str, str] = {}
    for path, value in _leaves(content, ""):
        section, _, leaf = path.rpartition(".")
        where = f"{path} in {file}"
        if any(path == each or path.startswith(f"{each}.") for each in _ELSEWHERE):
            continue
        if path.split(".")[0] == "sharing":
            if value not in (None, False, []):
                raise SettingsError(f"cannot use {where}: {_NO_SHARING.why}; leave sharing out")
            continue
        name = known.get(_plain(section + leaf if section == "imex" else leaf))
        if name is None or section not in {"flags", "flags.plugin", "imex"}:
            raise SettingsError(
                f"cannot use {where}: NVIDIA's plugin has no such key; keys of holdfast's belong "
                "in the file of --config"
            )
        if value is not None:
            found |= _meaning(name, _text(value), where)
    return found


def _meaning(name: str, text: str, called: str) -> dict[str, str]:
    """Return what the option *name* of value *text* sets, by path."""
    if name in VARIABLES:
        return {VARIABLES[name]: text}
    if name == KUBELET_SOCKET:
        return _folder(text, called)
    other = OTHERS[name]
    if other.needless is not None and text.strip().lower() not in other.needless:
        raise SettingsError(f"cannot use {called} with the value {text!r}: {other.why}")
    return {}


def _folder(text: str, called: str) -> dict[str, str]:
    """Return the folder of kubelet's socket, in which ours have to be, too."""
    if not text:
        raise SettingsError(
            f"cannot use {called} without a value: holdfast always registers with kubelet; leave "
            "it out, or set kubelet.pluginDir"
        )
    path = PurePosixPath(text)
    if path.name != _SOCKET:
        raise SettingsError(
            f"cannot use {called} with the value {text!r}: kubelet's socket is called {_SOCKET}; "
            "set kubelet.pluginDir to its folder"
        )
    return {"kubelet.pluginDir": str(path.parent)}


def _leaves(content: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _text(value: object) -> str:
    """Return a value of YAML as a variable would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_text(each) for each in value)
    return str(value)


def _dashed(name: str) -> str:
    return name.lower().replace("_", "-")


def _plain(name: str) -> str:
    """Return a name without what tells its spellings apart, such as deviceIDStrategy."""
    return name.replace("_", "").replace("-", "").lower()
