"""What people bring from NVIDIA's chart or by environment, and which key of ours it is."""

from collections.abc import Mapping

from holdfast.model.gate.cdi import _KIND as KIND
from holdfast.model.gate.gate import LONGEST_WAIT
from holdfast.names import (
    CONTROL_SOCKET,
    DRA_SOCKET,
    LONGEST_SOCKET_PATH,
    PLUGIN_SOCKET_BYTES,
    PLUGINS,
    PLUGINS_REGISTRY,
)
from holdfast.settings import known_paths, variable
from holdfast.settings.nvidia_plugin import KUBELET_SOCKET, VARIABLES
from holdfast.settings.reloading import TakeUp, take_up
from holdfast.settings.validation import _LONGEST_ALLOCATE as LONGEST_ALLOCATE

_CONFIG = "set config."
_FOLLOWS = "what the container may follows from config; leave it out"
_ELSEWHERE = "it is a program of its own; install it beside holdfast"

VALUES: Mapping[str, str] = {
    "migStrategy": f"{_CONFIG}gpu.migStrategy",
    "compatWithCPUManager": f"{_CONFIG}gpu.passDeviceSpecs",
    "deviceListStrategy": f"{_CONFIG}gpu.deviceListStrategy",
    "deviceIDStrategy": f"{_CONFIG}gpu.deviceIdStrategy",
    "nvidiaDriverRoot": f"{_CONFIG}gpu.driverRootOnHost",
    "nvidiaDevRoot": f"{_CONFIG}gpu.devRoot",
    "gdrcopyEnabled": f"{_CONFIG}gpu.gdrcopyEnabled",
    "gdsEnabled": f"{_CONFIG}gpu.gdsEnabled",
    "mofedEnabled": f"{_CONFIG}gpu.mofedEnabled",
    "cdi": f"{_CONFIG}gpu.cdiHookPath for cdi.nvidiaHookPath, and gpu.cdiFeatureFlags for "
    "cdi.featureFlags",
    "failOnInitError": "a driver that is not there is waited for; leave it out",
    "deviceDiscoveryStrategy": "GPUs are found by NVML; leave it out",
    "mps": f"MPS is not served; {_CONFIG}sharing.timeSlicing, or divide GPUs by MIG",
    "gfd": f"{_CONFIG}labels.enabled for gfd.enabled",
    "nfd": _ELSEWHERE,
    "devicePlugin": f"{_CONFIG}gpu.enabled for devicePlugin.enabled, and hostNetwork beside config "
    "for devicePlugin.enableHostNetwork",
    "securityContext": _FOLLOWS,
    "podSecurityContext": _FOLLOWS,
    "selectorLabelsOverride": "set nameOverride, or podLabels",
    "allowDefaultNamespace": "any namespace will do; leave it out",
    "namespace": "use helm --namespace",
    "componentSelectorLabels": "there is one DaemonSet alone; leave it out",
    "configManager": "documents are followed without it, and there is no such container; leave it "
    "out",
    "logVerbosity": f"{_CONFIG}log.level",
    "nvidiaDriverCapabilities": _FOLLOWS,
    "legacyDaemonsetAPI": "Kubernetes has no other DaemonSet; leave it out",
}
"""Values of the chart of NVIDIA's device plugin that ours has under another name, or not at all."""


def refused() -> Mapping[str, object]:
    """Return what the chart refuses by name, and what it says to do instead, and some bounds."""
    return {
        "values": VALUES,
        "variables": _variables(),
        "inDocuments": _in_documents(),
        "longestWait": LONGEST_WAIT,
        "longestAllocate": LONGEST_ALLOCATE,
        "longestSocket": LONGEST_SOCKET_PATH,
        "pluginSocket": PLUGIN_SOCKET_BYTES,
        "stateSocket": CONTROL_SOCKET,
        "draSockets": [f"{PLUGINS_REGISTRY}/%s-reg.sock", f"{PLUGINS}/%s/{DRA_SOCKET}"],
        "cdiKind": f"^({KIND.pattern.replace('?P<kind>', '')})$",
    }


def _in_documents() -> Mapping[str, bool]:
    """Return the keys and sections that no document may set: mounts and probes follow from them."""
    paths = [part for path in known_paths() for part in (path.split(".")[0], path)]
    return {"named": True} | {path: True for path in paths if take_up(path) is TakeUp.POD}


def _variables() -> Mapping[str, str]:
    """Return the key of `config` for each variable that would set it."""
    theirs = {**VARIABLES, KUBELET_SOCKET: "kubelet.pluginDir"}
    return {**{variable(path): path for path in sorted(known_paths())}, **theirs}
