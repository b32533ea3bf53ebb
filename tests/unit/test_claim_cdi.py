"""The CDI spec of a claim: what a runtime reads before it starts a container of its pods."""

import json
import os
from typing import Any

from holdfast.model.dra.handover import device, file_name, kind, spec
from holdfast.model.grants import ContainerGrant, GrantedMount
from holdfast.model.ids import ClaimUid

_CLAIM = ClaimUid("5f0c8b9e-0000-4000-8000-000000000001")
_GROUP, _CONTAINER = "/run/driver/dev/vfio/10", "/dev/vfio/vfio"
_NUMBERS = {_GROUP: os.makedev(511, 3)}
_FULL = ContainerGrant(
    nodes=(_GROUP, _CONTAINER),
    envs={"TPU_TOPOLOGY": "2x2", "CHIPS": "a=b,c"},
    mounts=(
        GrantedMount(host_path="/run/host", container_path="/run/pod"),
        GrantedMount(host_path="/lib/one", container_path="/lib/two", read_only=False),
    ),
)

GOLDEN = """\
{
  "cdiVersion": "0.5.0",
  "kind": "holdfast.dev/claim",
  "devices": [
    {
      "name": "5f0c8b9e-0000-4000-8000-000000000001-tpu-0",
      "containerEdits": {
        "env": [
          "CHIPS=a=b,c",
          "TPU_TOPOLOGY=2x2"
        ],
        "deviceNodes": [
          {
            "path": "/dev/vfio/10",
            "hostPath": "/run/driver/dev/vfio/10",
            "type": "c",
            "major": 511,
            "minor": 3,
            "fileMode": 438,
            "permissions": "rw"
          },
          {
            "path": "/dev/vfio/vfio",
            "hostPath": "/dev/vfio/vfio",
            "fileMode": 438,
            "permissions": "rw"
          }
        ],
        "mounts": [
          {
            "hostPath": "/run/host",
            "containerPath": "/run/pod",
            "options": [
              "bind",
              "nosuid",
              "nodev",
              "ro"
            ]
          },
          {
            "hostPath": "/lib/one",
            "containerPath": "/lib/two",
            "options": [
              "bind",
              "nosuid",
              "nodev",
              "rw"
            ]
          }
        ]
      }
    }
  ]
}
"""


def _spec(**devices: ContainerGrant) -> dict[str, Any]:
    return dict(json.loads(spec("holdfast.dev", _CLAIM, devices, _NUMBERS)))


def test_a_spec_has_every_node_variable_and_mount_of_its_device() -> None:
    assert spec("holdfast.dev", _CLAIM, {"tpu-0": _FULL}, _NUMBERS) == GOLDEN


def test_the_order_of_variables_does_not_change_the_file() -> None:
    turned = ContainerGrant(
        nodes=_FULL.nodes, envs=dict(sorted(_FULL.envs.items())), mounts=_FULL.mounts
    )

    assert _spec(**{"tpu-0": turned}) == json.loads(GOLDEN)


def test_what_a_device_does_not_need_is_left_out() -> None:
    """Runtimes take no empty list for nothing: old ones refuse the file."""
    bare = ContainerGrant(nodes=(_GROUP,))

    (edits,) = (each["containerEdits"] for each in _spec(a=bare)["devices"])

    assert [*edits] == ["deviceNodes"]


def test_each_device_is_found_by_the_name_that_kubelet_is_answered() -> None:
    found = _spec(**dict.fromkeys(("tpu-0", "tpu-1"), _FULL))

    names = [f"{found['kind']}={each['name']}" for each in found["devices"]]
    assert names == [
        f"{kind('holdfast.dev')}={device(_CLAIM, label)}" for label in ("tpu-0", "tpu-1")
    ]
    assert file_name(_CLAIM) == f"{_CLAIM}.json"
