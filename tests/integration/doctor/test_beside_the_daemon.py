"""`holdfast doctor` as a process of its own, on a live node whose daemon and kubelet run."""

import json
import os
from pathlib import Path

import yaml

from fakes.commands import holdfast
from fakes.stage import TPU, Stage, stage


async def _told(node: Stage, **changes: object) -> dict[str, dict[str, str]]:
    root = node.node.root
    names = ("sys", "proc", "dev", "cgroup", "etc", "run")
    config = node.folder / "config.yaml"
    settings = {
        "stateDir": str(node.state),
        "host": {name: str(getattr(root, name)) for name in names},
        "kubelet": {
            "pluginDir": str(node.folder / "dp"),
            "podResourcesSocket": str(node.folder / "pr.sock"),
        },
        **changes,
    }
    config.write_text(yaml.safe_dump(settings))
    done = await holdfast("doctor", "--config", config, "-o", "json")
    assert done.stderr == ""
    found = json.loads(done.stdout)["findings"]
    return {f"{each['area']} {each['check']}": each for each in found}


async def test_a_node_at_work_is_told_of_as_it_is_and_keeps_working(short_path: Path) -> None:
    async with stage(short_path) as node:
        (node.node.root.proc / "meminfo").write_text("MemTotal: 8388608 kB\n")
        told = await _told(node)

        assert told["configuration settings"]["level"] == "WARN"
        assert "other values of kubelet.poll, " in told["configuration settings"]["reason"]
        assert (
            told["kubelet own-sockets"]["reason"]
            == "somebody answers on holdfast-google-com_tpu.sock"
        )
        assert told["kubelet kubelet-socket"]["level"] == "OK"
        assert told["kubelet pod-resources"]["level"] == "OK"
        assert told["state daemon"]["reason"].endswith(f", pid {os.getpid()}")
        assert f"the daemon (pid {os.getpid()}) is limited" in told["memory limit"]["reason"]
        assert f"the daemon, pid {os.getpid()}, may do" in told["privileges subject"]["reason"]
        for check in ("devices", "iommu", "container", "driver", "group", "node"):
            assert told[f"vfio {check}"]["level"] == "OK"
        assert len(node.healthy()) == 4, "looking took nothing away"
        assert await node.allocate(next(iter(node.healthy())))


async def test_another_plugin_on_our_resource_is_told_while_it_happens(short_path: Path) -> None:
    async with stage(short_path) as node:
        await node.stop()
        path = short_path / "dp/kubelet_internal_checkpoint"
        checkpoint = json.loads(path.read_text())
        checkpoint["Data"]["RegisteredDevices"][TPU] = ["0", "1", "2", "3"]
        path.write_text(json.dumps(checkpoint))

        told = await _told(node)

        assert told["kubelet other-devices"]["level"] == "FAIL"
        assert (
            "from another plugin, with the devices 0, 1, 2"
            in (told["kubelet other-devices"]["reason"])
        )
        assert told["state daemon"]["reason"] == f"no daemon runs on {node.state}"
        assert told["kubelet own-sockets"]["level"] == "OK"
