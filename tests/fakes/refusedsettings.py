"""Settings that the daemon refuses although they are well formed, and settings just within its bounds.

A row is a mapping of YAML by the paths of keys; ``x{95}`` stands for 95 of that character.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

_REFUSED = r"""
{gate.wait: 27s} | gate.wait: kubelet gives up after 30 s; use at most 26s
{gate.wait: 26001ms} | gate.wait: kubelet gives up after 30 s; use at most 26s
{gate.poll: 0.0s} | gate.poll: expected a duration above zero
{allocate.commitTimeout: 10s} | allocate.commitTimeout: kubelet admits no other pod meanwhile; use less than 10s
{reclaim.retry.first: 1h1ms, reclaim.retry.last: 3600} | reclaim.retry.first: it is longer than reclaim.retry.last
{reclaim.retry.first: 6m} | reclaim.retry.first: it is longer than reclaim.retry.last
{reclaim.leakedSandbox: restart, reclaim.mode: observe} | reclaim.leakedSandbox: restart ends processes; it needs reclaim.mode: terminate
{kubelet.question.minInterval: 2m} | kubelet.question.minInterval: it is longer than question.idleInterval
{kubelet.pluginDir: /a/../b} | kubelet.pluginDir: expected an absolute path without `..`
{kubelet.socketPrefix: ""} | kubelet.socketPrefix: expected letters that can begin the name of a socket
{kubelet.socketPrefix: a/b} | kubelet.socketPrefix: expected letters that can begin the name of a socket
{kubelet.socketPrefix: "a\tb"} | kubelet.socketPrefix: expected letters that can begin the name of a socket
{kubelet.pluginDir: "/a,b"} | kubelet.pluginDir: expected an absolute path without `..` or a comma
{kubelet.podResourcesSocket: "/a,b"} | kubelet.podResourcesSocket: expected an absolute path without `..` or a comma
{kubelet.socketPrefix: "a,b"} | kubelet.socketPrefix: expected letters that can begin the name of a socket
{kubelet.socketPrefix: "a?"} | kubelet.socketPrefix: expected letters that can begin the name of a socket
{kubelet.socketPrefix: "a#b"} | kubelet.socketPrefix: expected letters that can begin the name of a socket
{kubelet.socketPrefix: "%41"} | kubelet.socketPrefix: expected letters that can begin the name of a socket
{kubelet.socketPrefix: x{44}} | kubelet.socketPrefix: no socket in /var/lib/kubelet/device-plugins can have a name
{kubelet.socketPrefix: kube} | kubelet.socketPrefix: 'kube' begins the name of kubelet's own socket too
{stateDir: /srv/../holdfast} | stateDir: expected an absolute path without `..`, such as /run/holdfast, got
{stateDir: state} | stateDir: expected an absolute path without `..`, such as /run/holdfast, got 'state'
{stateDir: /var/lib/kubelet/device-plugins} | stateDir: kubelet may clean its plugin folder
{stateDir: /var/lib/kubelet/device-plugins/holdfast} | stateDir: kubelet may clean its plugin folder
{stateDir: //var/lib/kubelet/device-plugins/holdfast} | stateDir: kubelet may clean its plugin folder
{stateDir: /x{95}} | stateDir: the path is too long for a Unix socket in it
{labels.folder: features.d} | labels.folder: expected an absolute path
{cdi.specDir: cdi} | cdi.specDir: expected an absolute path
{host.proc: ""} | host.proc: expected an absolute path
{tpu.resourceName: x{245}/a} | tpu.resourceName: kubelet takes no 'x
{tpu.resourceName: requests.a/b} | tpu.resourceName: kubelet takes no 'requests.a/b' from a plugin
{tpu.resourceName: a..b/c} | tpu.resourceName: expected a resource name such as
{pools: [{resourceName: x.kubernetes.io/b, addresses: ["*"]}]} | pools[0].resourceName: kubelet takes no 'x.kubernetes.io/b'
{tpu.resourceName: nvidia.com/gpu} | tpu.resourceName: 'nvidia.com/gpu' is a name of GPUs
{pools: [{resourceName: nvidia.com/gpu, addresses: ["*"]}]} | pools[0].resourceName: 'nvidia.com/gpu' is a name of GPUs
{pools: [{resourceName: a.b/c, addresses: ["*"]}, {resourceName: nvidia.com/mig-x, addresses: ["*"]}]} | pools[1].resourceName: 'nvidia.com/mig-x' is a name of GPUs
{devices: [{match: {pci: "*"}, resource: kubernetes.io/b}]} | devices[0].resource: kubelet takes no 'kubernetes.io/b'
{tpu.vbarUrl: "http://a\x7f"} | tpu.vbarUrl: expected text without control characters
{tpu.topology: "2x4\u2028"} | tpu.topology: expected a topology such as 2x4 or 2x2x1
{tpu.topology: 2x2x1x} | tpu.topology: expected a topology such as 2x4 or 2x2x1, or none, got '2x2x1x'
{tpu.topology: "0x4"} | tpu.topology: expected a topology such as 2x4 or 2x2x1
{tpu.topology: "8"} | tpu.topology: expected a topology such as 2x4 or 2x2x1
{tpu.acceleratorType: "\uffff"} | tpu.acceleratorType: expected text without control characters
{tpu.workerHostnames: ["a\r"]} | tpu.workerHostnames[0]: expected text without control characters
{gpu.cdiHookPath: "/a\x85"} | gpu.cdiHookPath: expected the absolute path of a file
{devices: [{match: {model: "a\0"}}]} | devices[0].match.model: expected a pattern such as
{tpu.resourceName: tpu} | tpu.resourceName: expected a resource name such as
{tpu.generation: v5ee} | tpu.generation: there is no 'v5ee'; did you mean v5e?
{tpu.generation: gpu} | tpu.generation: there is no 'gpu'; known are v2,
{tpu.workerId: 2, tpu.workerHostnames: [a, b]} | tpu.workerId: 2 is too high for the 2 hosts
{tpu.enabled: false, gpu.enabled: false} | tpu.enabled: nothing is left to advertise
{gpu.deviceListStrategy: []} | gpu.deviceListStrategy: without any no container is given its GPU
{gpu.cdiHookPath: nvidia-ctk} | gpu.cdiHookPath: expected the absolute path of a file
{gpu.driverRootOnHost: driver} | gpu.driverRootOnHost: expected an absolute path such as /run/driver
{gpu.cdiAnnotationPrefix: cdi.k8s.io} | gpu.cdiAnnotationPrefix: expected the beginning of an annotation's key: a domain
{gpu.imexChannelIds: [1]} | gpu.imexChannelIds[0]: Invalid enum value 1; use 0
{pools: [{resourceName: x, devices: ["1:2"]}]} | pools[0].resourceName: expected a resource name
{pools: [{resourceName: a.b/c}]} | pools[0].devices: give at least one of
{pools: [{resourceName: a.b/c, addresses: ["*"], api: csi}]} | pools[0].api: Invalid enum value 'csi'; use device-plugin or dra
{pools: [{resourceName: a.b/c, addresses: ["*"]}, {resourceName: a.b/c, addresses: ["*"], api: dra}]} | pools: a.b/c is served by both APIs; give its pools the same `api`
{pools: [{resourceName: google.com/tpu, addresses: ["*"]}], tpu.api: dra} | pools: google.com/tpu is served by both APIs
{pools: [{resourceName: google.com/tpu, addresses: ["*"], api: dra}]} | pools: google.com/tpu is served by both APIs
{deviceListStrategy: cdi, tpu.resourceName: a.b/4chips} | deviceListStrategy: 'a.b/4chips' cannot be a CDI kind
{deviceListStrategy: cdi, pools: [{resourceName: 3com.com/nic, classes: ["02"]}]} | deviceListStrategy: '3com.com/nic' cannot be a CDI kind
{deviceListStrategy: cdi, devices: [{match: {pci: "*"}, resource: 4.b/c}]} | deviceListStrategy: '4.b/c' cannot be a CDI kind
{devices: [{match: {}}]} | devices[0].match: give at least one of uuid, index, pci and model
{devices: [{match: {uuid: null}}]} | devices[0].match: give at least one of uuid, index, pci and model
{devices: [{match: {uuid: ""}}]} | devices[0].match.uuid: expected a pattern such as
{devices: [{match: {uid: x}}]} | did you mean devices[0].match.uuid?
{devices: [{exclude: true}]} | devices[0]: Object missing required field `match`
{devices: [{match: {uuid: "*"}, exclude: true, resource: a.b/c}]} | devices[0]: what is left out has no resource
{devices: [{match: {uuid: "*"}, exclude: true, reset: never}]} | devices[0]: what is left out has no resource
{devices: [{match: {uuid: "*"}, exclude: true, ignoreHealth: true}]} | devices[0]: what is left out has no resource
{devices: [{match: {uuid: "*"}, resource: chip}]} | devices[0].resource: expected a resource name
{devices: [{match: {uuid: "*"}, api: dra}]} | devices[0].api: it is for devices of another resource
{devices: [{match: {uuid: "*"}, resource: nvidia.com/mig-x, api: dra}]} | devices[0].api: nvidia.com/mig-x is served by device-plugin
{devices: [{match: {uuid: "*"}, resource: google.com/tpu, api: dra}]} | devices[0].api: google.com/tpu is served by device-plugin; give the same
{devices: [{match: {uuid: "*"}, resource: a.b/c}], tpu.api: dra} | devices[0].api: some hardware is served by device-plugin and some by dra
{devices: [{match: {uuid: a}, resource: a.b/c, api: device-plugin}, {match: {uuid: b}, resource: a.b/c, api: dra}]} | devices[1].api: a.b/c is served by device-plugin
{sharing.timeSlicing.resources: [{name: gpu, replicas: 2}]} | resources[0].name: expected nvidia.com/gpu, or MIG slices such as nvidia.com/mig-1g
{sharing.timeSlicing.resources: [{name: nvidia.com/gpus, replicas: 2}]} | resources[0].name: expected nvidia.com/gpu, or MIG slices such as nvidia.com/mig-1g
{sharing.timeSlicing.resources: [{name: google.com/tpu, replicas: 2}]} | resources[0].name: expected nvidia.com/gpu, or MIG slices such as nvidia.com/mig-1g
{sharing.timeSlicing.resources: [{name: nvidia.com/gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}]} | resources[1].name: nvidia.com/gpu is there twice; remove one
{sharing.timeSlicing.resources: [{name: nvidia.com/gpu, replicas: 2, rename: x}]} | resources[0].rename: 'x' is not a name for replicas; use nvidia.com/gpu.shared
{sharing.timeSlicing.resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2, rename: nvidia.com/gpu.shared}]} | use nvidia.com/mig-1g.5gb.shared
{sharing.timeSlicing.resources: [{name: nvidia.com/gpu, replicas: 2, devices: 2}]} | sharing.timeSlicing.resources[0].devices: Expected `str`, got `int`; use all
{dra.driverName: Holdfast} | dra.driverName: expected a DNS name of at most 63 lower-case characters
{dra.driverName: ""} | dra.driverName: expected a DNS name
{dra.driverName: a{64}, tpu.api: dra} | dra.driverName: expected a DNS name
{dra.driverName: a{63}, dra.kubeletRoot: /x{17}, tpu.api: dra} | is too long for a socket; choose a shorter name
{dra.kubeletRoot: /x{68}, gpu.api: dra} | is too long for a socket; choose a shorter name
{dra.kubeletRoot: kubelet} | dra.kubeletRoot: expected an absolute path such as /run/driver, got 'kubelet'
"""
"""With how the daemon says so, each reason of `settings.validation`; and more."""

_TAKEN = r"""
{tpu.resourceName: x{244}/y{63}}
{gate.wait: 26s}
{gate.wait: 0h0m26s0ms}
{allocate.commitTimeout: 9999ms}
{reclaim.retry.first: 5m, reclaim.retry.last: 300}
{reclaim.retry.first: 0.5ms, reclaim.retry.last: 0.1ms}
{reclaim.retry.first: 9000000h, reclaim.retry.last: 8000000h}
{kubelet.question.minInterval: 0.5ms, kubelet.question.idleInterval: 0.1ms}
{gpu.disableHealthChecks: "13,\n\t31\n", tpu.vbarUrl: "\ta\n"}
{kubelet.question.minInterval: 60}
{kubelet.socketPrefix: x{43}}
{stateDir: /x{93}}
{stateDir: /var/lib/kubelet/device-plugins-of-holdfast}
{tpu.workerId: 1, tpu.workerHostnames: [a, b]}
{deviceListStrategy: cdi, tpu.resourceName: a.b/c4}
{pools: [{resourceName: google.com/tpu, addresses: ["*"]}]}
{pools: [{resourceName: nvidia.com/gpu, addresses: ["*"]}], gpu.enabled: false}
{tpu.resourceName: nvidia.com/gpu, tpu.enabled: false}
{tpu.topology: 4X4x12}
{tpu.topology: ""}
{devices: [{match: {uuid: null, index: 0}, exclude: true, resource: ""}]}
{devices: [{match: {uuid: "*"}, resource: nvidia.com/mig-x, api: device-plugin}]}
{devices: [{match: {pci: "*"}, resource: a.b/c, api: dra}], tpu.api: dra}
{devices: [{match: {pci: "*"}, resource: google.com/tpu}], tpu.api: dra}
{sharing.timeSlicing.resources: [{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/gpu.shared}, {name: nvidia.com/mig-2g.10gb, replicas: 2}]}
{sharing.timeSlicing.resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2, rename: nvidia.com/mig-1g.5gb.shared}]}
{gpu.api: dra, gpu.deviceListStrategy: [cdi-annotations]}
{dra.driverName: a{63}, dra.kubeletRoot: /x{16}, tpu.api: dra}
{dra.kubeletRoot: /./././././././././//x{67}/, tpu.api: dra}
{dra.kubeletRoot: /x{68}}
"""


def _values(row: str) -> dict[str, Any]:
    text = re.sub(r"(\w)\{(\d+)\}", lambda found: found[1] * int(found[2]), row)
    values: dict[str, Any] = yaml.safe_load(text)
    return values


REFUSED: tuple[tuple[dict[str, Any], str], ...] = tuple(
    (_values(row), reason)
    for row, _, reason in (line.partition(" | ") for line in _REFUSED.strip().splitlines())
)
TAKEN: tuple[dict[str, Any], ...] = tuple(map(_values, _TAKEN.strip().splitlines()))


def tree(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with these values by path."""
    config: dict[str, Any] = {}
    for path, value in paths.items():
        *parents, last = path.split(".")
        section = config
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
    return config
