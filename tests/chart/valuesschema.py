"""Writes the chart's values.schema.json: `config` by the settings' type, the rest is told here."""

from collections.abc import Mapping
from typing import Any, cast

from chart.keys import Group, groups
from holdfast.settings import schema
from holdfast.settings.nvidia import VARIABLES
from holdfast.settings.nvidia_plugin import KUBELET_SOCKET

Schema = dict[str, Any]

_FIXED = ("sys", "proc", "cgroup", "etc", "run")
"""Keys of `config.host` that are not a user's to set: in the container each has one place."""
_MOUNTED = (
    "stateDir",
    "kubelet.pluginDir",
    "kubelet.podResourcesSocket",
    "cdi.specDir",
    "host.dev",
    "gpu.driverRoot",
    "gpu.devRoot",
    "tpu.envFile",
)
"""Paths that become mounts: kubelet would refuse the pod, far from the values."""

TEXT: Schema = {"type": "string"}
TRUTH: Schema = {"type": "boolean"}
ANYTHING: Schema = {"type": "object"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
FOLDER: Schema = {"type": "string", "pattern": "^/[^:]+$"}
FOLDERS: Schema = {"type": "array", "items": FOLDER, "uniqueItems": True}
COUNT: Schema = {"type": "integer", "minimum": 1}
PERIOD: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}


def section(**properties: Schema) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


_PROBE = section(
    initialDelaySeconds={"type": "integer", "minimum": 0},
    periodSeconds=COUNT,
    timeoutSeconds=COUNT,
    failureThreshold=COUNT,
)
_RUNTIME_CLASS = section(create=TRUTH, name=TEXT, handler=TEXT, nodeSelector=TEXTS)

_CHART: Mapping[str, Schema] = {
    "nameOverride": TEXT,
    "fullnameOverride": TEXT,
    "namespaceOverride": TEXT,
    "image": section(
        repository={"type": "string", "minLength": 1},
        tag=TEXT,
        digest={"type": "string", "pattern": "^(|sha256:[0-9a-f]{64})$"},
        pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    ),
    "imagePullSecrets": {
        "type": "array",
        "items": {**section(name=TEXT), "required": ["name"]},
    },
    "kubeletRoot": FOLDER,
    "runtimeFolders": FOLDERS,
    "extraEnv": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            # Mounts and capabilities follow from `config`: a setting from elsewhere would lack them.
            "properties": {
                "name": {
                    "type": "string",
                    "not": {
                        "anyOf": [
                            {"pattern": "^HOLDFAST_"},
                            {"enum": sorted({*VARIABLES, KUBELET_SOCKET})},
                        ]
                    },
                }
            },
        },
    },
    "privileged": TRUTH,
    "runtimeClassName": TEXT,
    "appArmor": {"enum": ["field", "annotation", "none"]},
    "seLinuxType": TEXT,
    "seccompProfile": {"type": ["object", "null"]},
    "hostNetwork": TRUTH,
    "resources": {"type": ["object", "null"]},
    "priorityClassName": TEXT,
    "resourceQuota": section(create=TRUTH, pods=TEXT),
    "updateStrategy": section(
        type={"enum": ["RollingUpdate", "OnDelete"]},
        rollingUpdate={
            "type": ["object", "null"],
            "properties": {
                # Two daemons on one node would fight over the ledger and over kubelet.
                "maxSurge": {"enum": [0]},
                "maxUnavailable": {"type": ["integer", "string"]},
            },
            "additionalProperties": False,
        },
    ),
    "terminationGracePeriodSeconds": COUNT,
    "probes": section(startup=_PROBE, liveness=_PROBE, readiness=_PROBE),
    "serviceAccount": section(create=TRUTH, name=TEXT, annotations=TEXTS),
    "podAnnotations": TEXTS,
    "podLabels": TEXTS,
    "nodeSelector": TEXTS,
    "affinity": {"type": ["object", "null"]},
    "tolerations": {"type": ["array", "null"], "items": ANYTHING},
    "podMonitor": section(enabled=TRUTH, interval=PERIOD, labels=TEXTS),
    "prometheusRule": section(enabled=TRUTH, labels=TEXTS),
    "dashboards": section(enabled=TRUTH, labels=TEXTS),
    "runtimeClasses": section(gvisor=_RUNTIME_CLASS, nvidia=_RUNTIME_CLASS),
    # Helm's own, where the chart is a part of another.
    "global": ANYTHING,
}


def values_schema() -> Schema:
    """Return the JSON schema of the chart's values; unknown keys are refused, `config`'s too."""
    found = schema()
    about = {each.path: each for each in groups()}
    config = _plain(found["$defs"]["Settings"], found["$defs"], about, "")
    host = config["properties"]["host"]["properties"]
    for name in _FIXED:
        del host[name]
    for path in _MOUNTED:
        *parents, last = path.split(".")
        keys = config["properties"]
        for parent in parents:
            keys = keys[parent]["properties"]
        keys[last]["pattern"] = "^(/[^:]+)?$" if keys[last]["default"] == "" else "^/[^:]+$"
    # It alone may be the node's own root.
    config["properties"]["gpu"]["properties"]["driverRootOnHost"]["pattern"] = "^(/[^:]*)?$"
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart holdfast",
        **section(config=config, **_CHART),
    }


def _plain(
    node: Schema, types: Mapping[str, Schema], about: Mapping[str, Group], at: str
) -> Schema:
    """Return *node* with what it refers to in its place, so that Helm's messages have the path."""
    if "$ref" in node:
        node = types[node["$ref"].rpartition("/")[2]]
    found = {name: value for name, value in node.items() if name not in {"title", "required"}}
    if node.get("required"):
        found["required"] = node["required"]
    group = about.get(at)
    if group is not None and "properties" in found:
        meanings = {key.path: key.meaning for key in group.keys}
        found["description"] = group.about
        found["properties"] = {
            name: _plain(_with(below, meanings.get(path, "")), types, about, path)
            for name, below in cast("dict[str, Schema]", found["properties"]).items()
            for path in [f"{at}.{name}".lstrip(".")]
        }
    if isinstance(found.get("items"), dict):
        found["items"] = _plain(found["items"], types, about, f"{at}[]")
    return found


def _with(node: Schema, meaning: str) -> Schema:
    return {**node, "description": meaning} if meaning else dict(node)
