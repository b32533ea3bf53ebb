"""Translates the flags, variables and file of NVIDIA's device plugin to keys of the settings.

The names are those of its v0.20. `VARIABLES` has the key of each option that means the same here.
`OTHERS` has the rest: some of it needs nothing, some is refused with what to use instead.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from msgspec import Struct

from holdfast import names as files
from holdfast.errors import SettingsError

VARIABLES: Mapping[str, str] = {
    "NVIDIA_DRIVER_ROOT": "gpu.driverRootOnHost",
    "CONTAINER_DRIVER_ROOT": "gpu.driverRoot",
    "DRIVER_ROOT_CTR_PATH": "gpu.driverRoot",
    "NVIDIA_DEV_ROOT": "gpu.devRoot",
    "DEVICE_LIST_STRATEGY": "gpu.deviceListStrategy",
    "DEVICE_ID_STRATEGY": "gpu.deviceIdStrategy",
    "PASS_DEVICE_SPECS": "gpu.passDeviceSpecs",
    "GDRCOPY_ENABLED": "gpu.gdrcopyEnabled",
    "GDS_ENABLED": "gpu.gdsEnabled",
    "MOFED_ENABLED": "gpu.mofedEnabled",
    "CDI_ANNOTATION_PREFIX": "gpu.cdiAnnotationPrefix",
    "NVIDIA_CTK_PATH": "gpu.cdiHookPath",
    "NVIDIA_CDI_HOOK_PATH": "gpu.cdiHookPath",
    "CDI_DISABLE_HOOKS": "gpu.cdiDisableHooks",
    "CDI_FEATURE_FLAGS": "gpu.cdiFeatureFlags",
    "IMEX_CHANNEL_IDS": "gpu.imexChannelIds",
    "IMEX_REQUIRED": "gpu.imexRequired",
    "MIG_STRATEGY": "gpu.migStrategy",
    "SHARED_DEVICES_ALLOCATION_POLICY": "gpu.sharedDevicesAllocationPolicy",
    "DP_DISABLE_HEALTHCHECKS": "gpu.disableHealthChecks",
    "DP_ENABLE_HEALTHCHECKS": "gpu.enableHealthChecks",
}
"""The key of each option. A HOLDFAST_ variable of the same key wins over it."""
KUBELET_SOCKET = "KUBELET_SOCKET"
CONFIG_FILE = "CONFIG_FILE"
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
"""Flags with another name than their variable."""
LISTS = frozenset(
    {"device-list-strategy", "imex-channel-ids", "cdi-feature-flags", "cdi-disable-hooks"}
)
"""Flags that can be given several times: all of their values count."""
_NO_FLAG = frozenset({"DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"})
_ELSEWHERE = frozenset({"version", "resources", "flags.gfd", "flags.usenodefeatureapi"})
"""Keys of its file that are read elsewhere, or that are for another program."""
_SECTIONS = frozenset(
    {"flags", "flags.plugin", "imex", "sharing", "sharing.timeslicing", "sharing.mps"}
)
_IN_FILE: Mapping[str, str] = {
    "flags.migStrategy": "MIG_STRATEGY",
    "flags.failOnInitError": "FAIL_ON_INIT_ERROR",
    "flags.mpsRoot": "MPS_ROOT",
    "flags.nvidiaDriverRoot": "NVIDIA_DRIVER_ROOT",
    "flags.nvidiaDevRoot": "NVIDIA_DEV_ROOT",
    "flags.gdrcopyEnabled": "GDRCOPY_ENABLED",
    "flags.gdsEnabled": "GDS_ENABLED",
    "flags.mofedEnabled": "MOFED_ENABLED",
    "flags.deviceDiscoveryStrategy": "DEVICE_DISCOVERY_STRATEGY",
    "flags.plugin.passDeviceSpecs": "PASS_DEVICE_SPECS",
    "flags.plugin.deviceListStrategy": "DEVICE_LIST_STRATEGY",
    "flags.plugin.deviceIDStrategy": "DEVICE_ID_STRATEGY",
    "flags.plugin.cdiAnnotationPrefix": "CDI_ANNOTATION_PREFIX",
    "flags.plugin.nvidiaCTKPath": "NVIDIA_CTK_PATH",
    "flags.plugin.cdiFeatureFlags": "CDI_FEATURE_FLAGS",
    "flags.plugin.containerDriverRoot": "CONTAINER_DRIVER_ROOT",
    "flags.plugin.sharedDevicesAllocationPolicy": "SHARED_DEVICES_ALLOCATION_POLICY",
    "imex.channelIDs": "IMEX_CHANNEL_IDS",
    "imex.required": "IMEX_REQUIRED",
}
"""Each key of its file, and the option that it sets."""
_TIME_SLICING = {
    key.lower(): key
    for key in (
        "sharing.timeSlicing.renameByDefault",
        "sharing.timeSlicing.failRequestsGreaterThanOne",
        "sharing.timeSlicing.resources",
    )
}
"""The keys that its file and ours both have."""
_BY_LOWER = {path.lower(): path for path in _IN_FILE}
"""Go ignores the case of these keys."""
_RENAMED = {"nvidiacdihookpath": "nvidiactkpath"}
"""The one key with another name than its newer variable and flag."""
IDLE = "has no effect, as with NVIDIA's plugin"
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""What Go's strconv.ParseBool takes, by which NVIDIA's plugin reads them."""


class KeylessOption(Struct, frozen=True, kw_only=True):
    """An option without a key. `needless` are the values that ask for nothing; None: all do."""

    why: str
    needless: frozenset[str] | None = None


NO_MPS = KeylessOption(
    why="MPS is not served, because nothing could tell whose work its server does; share GPUs by "
    "sharing.timeSlicing, or divide them by MIG"
)
OTHERS: Mapping[str, KeylessOption] = {
    "FAIL_ON_INIT_ERROR": KeylessOption(
        why="holdfast runs without the driver too, and looks for it until it comes"
    ),
    "DEVICE_DISCOVERY_STRATEGY": KeylessOption(
        why="GPUs are found by NVML alone; for Tegra, and for WSL, stay with NVIDIA's plugin",
        needless=frozenset({"", "auto", "nvml"}),
    ),
    "MPS_ROOT": NO_MPS,
}


def flags() -> dict[str, bool]:
    """Return each flag, without leading dashes, and whether it can do without a value."""
    names = [*VARIABLES, *OTHERS, KUBELET_SOCKET, CONFIG_FILE]
    found = {_dashed(name): name in _BOOLEANS for name in names if name not in _NO_FLAG}
    return found | dict.fromkeys(_SHORTER, False)


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what NVIDIA's variables in *environ* set, by path; raise SettingsError."""
    found: dict[str, str] = {}
    for name in (*VARIABLES, *OTHERS, KUBELET_SOCKET):
        if name in environ:
            found |= _meaning(name, environ[name], f"the environment variable {name}")
    return found


def from_flags(given: Mapping[str, str]) -> dict[str, str]:
    """Return what NVIDIA's flags set, by path; raise SettingsError. *given* is by flag."""
    found: dict[str, str] = {}
    for flag, text in given.items():
        name = _SHORTER.get(flag, flag.replace("-", "_").upper())
        if name != CONFIG_FILE:
            found |= _meaning(name, text, f"--{flag}")
    return found


def from_file(
    content: Mapping[str, object], file: str, told: Callable[[str], None]
) -> tuple[Mapping[str, str], Mapping[str, object]]:
    """Return what a file of NVIDIA's format sets, by path; raise SettingsError.

    First is what it has as text, as in the environment, then what is as the file has it. A key in
    the wrong section has no effect, because NVIDIA's plugin does not read it there either: *told*
    is called with a text for each. A key that the plugin does not have is refused.
    """
    version = content.get("version") or "v1"
    if version != "v1":
        raise SettingsError(f"cannot use {file}: version: {version!r} is not supported; use v1")
    found: dict[str, str] = {}
    given: dict[str, object] = {}
    for path, value in _leaves(content, ""):
        where, lower = f"{path} in {file}", path.lower()
        elsewhere = any(lower == each or lower.startswith(f"{each}.") for each in _ELSEWHERE)
        if elsewhere or (value is None and lower in _SECTIONS):
            continue
        if lower.startswith("sharing."):
            given |= _sharing(path, value, file, told)
        elif lower not in _BY_LOWER:
            told(_misplaced(lower, where))
        elif value is not None:
            name = _IN_FILE[_BY_LOWER[lower]]
            found |= _meaning(name, _text(name, value, where), where)
    found = root_on_host(found) | found
    from holdfast.settings.nvidia_resources import rules_from  # noqa: PLC0415 - memory

    if rules := rules_from(content, file):
        given["devices"] = rules
    return found, given


def root_on_host(found: Mapping[str, str]) -> dict[str, str]:
    """Return the default of NVIDIA_DRIVER_ROOT, for where *found* has the container's path."""
    return {"gpu.driverRootOnHost": "/"} if found.get("gpu.driverRoot") else {}


def _sharing(path: str, value: object, file: str, told: Callable[[str], None]) -> dict[str, object]:
    """Return what a key of the section sharing sets, by path; *told* hears what has no effect.

    Go ignores the case of the sections, and not that of the keys in them.
    """
    lower, called = path.lower(), f"{path} in {file}"
    if lower.startswith("sharing.mps"):
        if value in (None, False, []):
            return {}
        raise SettingsError(f"cannot use {called}: {NO_MPS.why}")
    if lower not in _TIME_SLICING:
        raise SettingsError(
            f"cannot use {called}: NVIDIA's plugin has no such key; it has "
            "sharing.timeSlicing.resources"
        )
    ours = _TIME_SLICING[lower]
    if path.rpartition(".")[2] != ours.rpartition(".")[2]:
        told(f"{called} {IDLE}: it is written {ours} there; write it so, or leave it out")
        return {}
    if value is None:
        return {}
    if isinstance(value, list):
        from holdfast.settings.nvidia_resources import shared_of  # noqa: PLC0415 - memory

        value = shared_of(value, file, told)
    return {ours: value}


def _misplaced(path: str, where: str) -> str:
    """Return where the key at *path* belongs; raise SettingsError when there is no such key."""
    leaf = path.rpartition(".")[2]
    leaf = _RENAMED.get(leaf, leaf)
    right = next((key for key in _IN_FILE if key.lower().rpartition(".")[2] == leaf), None)
    if right is None or not path.startswith(("flags.", "imex.")):
        raise SettingsError(
            f"cannot use {where}: NVIDIA's plugin has no such key; put keys of holdfast in "
            "the file of --config"
        )
    return f"{where} {IDLE}: it belongs at {right}; move it there, or leave it out"


def _meaning(name: str, text: str, called: str) -> dict[str, str]:
    """Return what the option *name* of value *text* sets, by path."""
    if name in _BOOLEANS:
        text = _boolean(text, called)
    if name in VARIABLES:
        return {VARIABLES[name]: text}
    if name == KUBELET_SOCKET:
        return _folder(text, called)
    other = OTHERS[name]
    if other.needless is not None and text.strip().lower() not in other.needless:
        raise SettingsError(f"cannot use {called} with the value {text!r}: {other.why}")
    return {}


def _folder(text: str, called: str) -> dict[str, str]:
    """Return the folder of kubelet's socket, in which the daemon's own must be too."""
    if not text:
        raise SettingsError(
            f"cannot use {called} without a value: holdfast always registers with kubelet; leave "
            "it out, or set kubelet.pluginDir"
        )
    path = PurePosixPath(text)
    if path.name != files.KUBELET_SOCKET:
        raise SettingsError(
            f"cannot use {called} with the value {text!r}: kubelet's socket is called "
            f"{files.KUBELET_SOCKET}; set kubelet.pluginDir to its folder"
        )
    return {"kubelet.pluginDir": str(path.parent)}


def _leaves(content: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _boolean(text: str, called: str) -> str:
    """Return ``true`` or ``false``; NVIDIA's plugin too reads an empty variable as false."""
    if text in _TRUE:
        return "true"
    if text in _FALSE or not text:
        return "false"
    raise SettingsError(
        f"cannot use {called} with the value {text!r}: NVIDIA's plugin takes true, t and 1, or "
        "false, f and 0; use one of them"
    )


def _text(name: str, value: object, called: str) -> str:
    """Return a YAML value as the text of a variable; raise SettingsError for another type."""
    if isinstance(value, bool) != (name in _BOOLEANS):
        wanted = "true or false, without quotes" if name in _BOOLEANS else "text"
        raise SettingsError(f"cannot use {called} with the value {value!r}: it must be {wanted}")
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)


def _dashed(name: str) -> str:
    return name.lower().replace("_", "-")
