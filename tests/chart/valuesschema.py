"""Writes the chart's values.schema.json: `config` by the settings' type, the rest is told here."""

from collections.abc import Mapping
from typing import Any, cast

from chart.theirs import VALUES
from holdfast.model.tpu.generations import GENERATIONS
from holdfast.names import KUBELET_SOCKET
from holdfast.settings import schema
from holdfast.settings.reloading import TakeUp, take_up

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
    "dra.kubeletRoot",
    "labels.folder",
)
"""Paths that become mounts."""
_MOUNT: Schema = {"not": {"pattern": r"^(/\.{0,2})+$|:"}}
"""Beside its form: kubelet would refuse the pod, or mount another path, far from the values."""

TEXT: Schema = {"type": "string"}
TRUTH: Schema = {"type": "boolean"}
ANYTHING: Schema = {"type": "object"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
FOLDER: Schema = {
    "type": "string",
    "pattern": schema()["$defs"]["Settings"]["properties"]["stateDir"]["pattern"],
    **_MOUNT,
}
FOLDERS: Schema = {"type": "array", "items": FOLDER, "uniqueItems": True}
COUNT: Schema = {"type": "integer", "minimum": 1}
NAME: Schema = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"}
DOTTED: Schema = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"}
QUANTITY: Schema = {
    "type": ["string", "number"],
    "pattern": "^([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][0-9]+|m|k|[MGTPE]|[KMGTPE]i)?$",
    "minimum": 0,
}
PERIOD: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}


def section(**properties: Schema) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


def whole(*needed: str, **properties: Schema) -> Schema:
    """Return the schema of a section of which the templates need the keys *needed*."""
    return {**section(**properties), "required": list(needed)}


_PROBE = section(
    initialDelaySeconds={"type": "integer", "minimum": 0},
    periodSeconds=COUNT,
    timeoutSeconds=COUNT,
    failureThreshold=COUNT,
)
_PROBES = ("startup", "liveness", "readiness")
_RESOURCES: Schema = {
    **section(**{"cpu": QUANTITY, "memory": QUANTITY, "ephemeral-storage": QUANTITY}),
    "type": ["object", "null"],
    "patternProperties": {"^hugepages-.+$": QUANTITY, "^.+/.+$": QUANTITY},
}
_AFFINITY = section(
    **{
        f"{when}DuringSchedulingIgnoredDuringExecution": {"type": ["array", "object"]}
        for when in ("required", "preferred")
    }
)
_RUNTIME_CLASS = section(create=TRUTH, name=TEXT, handler=TEXT, nodeSelector=TEXTS)

_CHART: Mapping[str, Schema] = {
    "nameOverride": NAME,
    "fullnameOverride": NAME,
    "namespaceOverride": NAME,
    "image": whole(
        "repository",
        repository={"type": "string", "minLength": 1},
        tag=TEXT,
        digest={"type": "string", "pattern": "^(|sha256:[0-9a-f]{64})$"},
        pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    ),
    "imagePullSecrets": {
        "type": "array",
        "items": whole("name", name=TEXT),
    },
    "dra": whole("deviceClasses", enabled=TRUTH, deviceClasses=section(create=TRUTH)),
    "kubeletRoot": FOLDER,
    "runtimeFolders": FOLDERS,
    # What they may not set is refused in templates/_refusals.tpl, which can name the key to use.
    "extraEnv": {
        "type": "array",
        "items": whole(
            "name", name={"type": "string", "minLength": 1}, value=TEXT, valueFrom=ANYTHING
        ),
    },
    "privileged": TRUTH,
    "runtimeClassName": TEXT,
    "appArmor": {"enum": ["field", "annotation", "none"]},
    "seLinuxType": TEXT,
    "seccompProfile": {
        **section(
            type={"enum": ["RuntimeDefault", "Unconfined", "Localhost"]},
            localhostProfile={"type": "string", "minLength": 1},
        ),
        "type": ["object", "null"],
        "required": ["type"],
        "if": {"required": ["type"], "properties": {"type": {"const": "Localhost"}}},
        "then": {"required": ["localhostProfile"]},
        "else": {"properties": {"localhostProfile": {"maxLength": 0}}},
    },
    "hostNetwork": TRUTH,
    "resources": {
        **section(
            limits=_RESOURCES,
            requests=_RESOURCES,
            claims={"type": "array", "items": {**section(name=TEXT, request=TEXT)}},
        ),
        "type": ["object", "null"],
    },
    "priorityClassName": TEXT,
    "resourceQuota": section(create=TRUTH, pods={**QUANTITY, "type": "string"}),
    "updateStrategy": section(
        type={"enum": ["RollingUpdate", "OnDelete"]},
        rollingUpdate={
            "type": ["object", "null"],
            "properties": {
                # Two daemons on one node would fight over the ledger and over kubelet.
                "maxSurge": {"enum": [0]},
                "maxUnavailable": {
                    "anyOf": [COUNT, {"type": "string", "pattern": "^(100|[1-9][0-9]?)%$"}]
                },
            },
            "additionalProperties": False,
        },
    ),
    "terminationGracePeriodSeconds": COUNT,
    "probes": whole(*_PROBES, **dict.fromkeys(_PROBES, _PROBE)),
    "serviceAccount": section(create=TRUTH, name=DOTTED, annotations=TEXTS),
    "podAnnotations": TEXTS,
    "podLabels": TEXTS,
    "nodeSelector": TEXTS,
    "affinity": {
        **section(nodeAffinity=_AFFINITY, podAffinity=_AFFINITY, podAntiAffinity=_AFFINITY),
        "type": ["object", "null"],
    },
    "tolerations": {
        "type": ["array", "null"],
        "items": section(
            key=TEXT,
            operator={"enum": ["Exists", "Equal"]},
            value=TEXT,
            effect={"enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"]},
            tolerationSeconds={"type": ["integer", "null"]},
        ),
    },
    "podMonitor": section(enabled=TRUTH, interval=PERIOD, labels=TEXTS),
    "prometheusRule": section(enabled=TRUTH, labels=TEXTS),
    "dashboards": section(enabled=TRUTH, labels=TEXTS),
    "runtimeClasses": whole("gvisor", "nvidia", gvisor=_RUNTIME_CLASS, nvidia=_RUNTIME_CLASS),
    # Helm's own, where the chart is a part of another.
    "global": ANYTHING,
}


DOCUMENTS: Mapping[str, Schema] = {
    # The name of a document is the value of a label and the key of a ConfigMap.
    "map": {
        "type": "object",
        "patternProperties": {
            "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$": {
                "type": ["string", "object"],
                "if": {"anyOf": [{"required": [each]} for each in ("version", "flags")]},
                "else": {"$ref": "#/definitions/document"},
            }
        },
        "additionalProperties": False,
    },
    "name": NAME,
    "default": {**TEXT, "pattern": schema()["$defs"]["Named"]["properties"]["default"]["pattern"]},
    "fallbackStrategies": {
        "type": "array",
        "items": {"enum": ["named", "single", "empty"]},
    },
}
"""Keys of `config` beside the daemon's own, as the chart of NVIDIA's device plugin has them."""


def values_schema() -> Schema:
    """Return the JSON schema of the chart's values; unknown keys are refused, `config`'s too."""
    found = schema()
    config = _plain(found["$defs"]["Settings"], found["$defs"])
    host = config["properties"]["host"]["properties"]
    for name in _FIXED:
        del host[name]
    for path in _MOUNTED:
        _key(config, path).update(_MOUNT)
    _key(config, "gpu.driverRootOnHost")["not"] = {"pattern": ":"}
    _key(config, "kubelet.socketPrefix")["not"] = {
        "enum": [KUBELET_SOCKET[: n + 1] for n in range(len(KUBELET_SOCKET))]
    }
    _key(config, "tpu.generation")["enum"] = ["", *sorted(GENERATIONS)]
    _key(config, "gpu.deviceListStrategy")["minItems"] = 1
    _refine_pools(_key(config, "pools")["items"])
    _refine_rules(_key(config, "devices")["items"])
    del config["properties"]["named"]["properties"]["folder"]  # the chart mounts it
    document = _document(config, "#/properties/config")
    config["properties"] |= DOCUMENTS
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart holdfast",
        "definitions": {"document": document},
        # A value of null takes a key away, also one that the templates read keys of.
        "required": ["config", *(name for name, each in _CHART.items() if _needed(name, each))],
        **section(config=config, **_CHART, **{name: {} for name in VALUES}),
    }


def _needed(name: str, node: Schema) -> bool:
    """Tell whether the templates need the value; Helm itself adds `global`."""
    return name != "global" and "null" not in node.get("type", ())


def _document(section: Schema, place: str, prefix: str = "") -> Schema:
    """Return the schema of what a document may set of *section*, whose own is at *place*."""
    found: Schema = {}
    for name, each in section["properties"].items():
        path, here = f"{prefix}{name}", f"{place}/properties/{name}"
        if path == "named" or take_up(path) is TakeUp.POD:
            continue
        mixed = any(take_up(f"{path}.{key}") is TakeUp.POD for key in each.get("properties", ()))
        found[name] = _document(each, here, f"{path}.") if mixed else {"$ref": here}
    return {"type": ["string", "object"], "properties": found, "additionalProperties": False}


def _key(config: Schema, path: str) -> Schema:
    """Return the schema of the key at *path*."""
    for name in path.split("."):
        config = config["properties"][name]
    return config


def _refine_pools(pool: Schema) -> None:
    """Refuse what the daemon would refuse of a pool."""
    selectors = ("devices", "classes", "addresses")
    pool["anyOf"] = [
        {"required": [each], "properties": {each: {"minItems": 1}}} for each in selectors
    ]


def _refine_rules(rule: Schema) -> None:
    """Refuse what the daemon would refuse of a rule for some devices."""
    match = rule["properties"]["match"]
    match["anyOf"] = [
        {"required": [each], "properties": {each: {"not": {"type": "null"}}}}
        for each in match["properties"]
    ]
    given = {"required": ["resource"], "properties": {"resource": {"minLength": 1}}}
    rule["allOf"] = [
        {
            "if": {"required": ["exclude"], "properties": {"exclude": {"const": True}}},
            "then": {
                "properties": {
                    "resource": {"maxLength": 0},
                    "reclaimMode": {"const": ""},
                    "reset": {"const": ""},
                    "ignoreHealth": {"const": False},
                }
            },
        },
        {
            "if": {"required": ["api"], "properties": {"api": {"minLength": 1}}},
            "then": given,
        },
    ]


def _plain(node: Schema, types: Mapping[str, Schema]) -> Schema:
    """Return *node* with what it refers to in its place, so that Helm's messages have the path."""
    if "$ref" in node:
        node = types[node["$ref"].rpartition("/")[2]]
    found = {name: value for name, value in node.items() if name not in {"title", "required"}}
    if node.get("required"):
        found["required"] = node["required"]
    if "properties" in found:
        below = cast("dict[str, Schema]", found["properties"])
        found["properties"] = {name: _plain(each, types) for name, each in below.items()}
    if isinstance(found.get("items"), dict):
        found["items"] = _plain(found["items"], types)
    return found
