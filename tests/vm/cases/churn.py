"""The daemon as the chart runs it, within 64 MiB, while everything around it comes and goes."""

import os
import time
from collections import Counter
from pathlib import Path

from vm.catalogue import case
from vm.guest.node import GuestNode
from vm.guest.stage import PodOnStage, Stage
from vm.guest.waits import wait_until
from vm.modes import CHART, CHURN, POOL

_MINUTES = float(os.environ.get("MINUTES") or 0.3)
_LIMIT = 64 << 20
_RESTART_EVERY = 8.0
_TELL_EVERY = 60.0


@case(daemon=CHART + CHURN, deadline=_MINUTES * 60 + 180, always=True)
def case_churn_in_64_mib_without_an_oom_kill(node: GuestNode) -> str:
    stage = node.stage
    cgroup, pid = stage.chart.cgroup, stage.chart.pid
    assert int((cgroup / "memory.max").read_text()) == _LIMIT
    node.give(node.mixed[0])
    node.give(node.mixed[1], "uio_pci_generic")  # so that its group is refused
    refused = node.mixed[0].address
    wait_until(lambda: any("uio_pci_generic" in text for text in stage.device(refused)["reasons"]))
    done: Counter[str] = Counter()
    began = told = restarted = time.monotonic()
    pods: list[PodOnStage] = []
    while time.monotonic() - began < _MINUTES * 60:
        _one_round(node, pods, done)
        now = time.monotonic()
        if now - restarted > _RESTART_EVERY:
            stage.restart_kubelet()
            done["streams reopened"] += 3
            restarted = time.monotonic()
        if now - told > _TELL_EVERY:
            node.tell(f"{(now - began) / 60:.0f} min: {_told(done)}; {_memory(cgroup)}")
            told = now
    for pod in pods:
        stage.end(pod)
    assert stage.chart.pid == pid, "the daemon was started anew"
    events = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
    assert (events["oom"], events["oom_kill"]) == ("0", "0"), events
    minutes = (time.monotonic() - began) / 60
    node.conclude("churn", minutes=f"{minutes:.1f}", oom=events["oom"], memory=_peak(cgroup))
    return f"{minutes:.1f} min: {_told(done)}; no OOM; {_memory(cgroup)}"


def _one_round(node: GuestNode, pods: list[PodOnStage], done: Counter[str]) -> None:
    """Let a pod come, and the eldest go when three are there; ask, probe, and be refused meanwhile."""
    stage = node.stage
    pod = stage.submit(f"churn-{done['pods']}", chips=1)
    pods.append(pod)
    pod.await_running()
    done["pods"] += 1
    for _ in range(5):
        refused = stage.allocate(POOL, node.mixed[0].address)
        assert "uio_pci_generic" in refused
        done["refused allocations"] += 1
    status, _ = stage.probe("readinessProbe")
    assert status in {200, 503}
    assert "holdfast_" in stage.chart.fetch("/metrics")[1]
    for question in ("locks", "devices", "holders", "status"):
        stage.ask(question)
    done["questions"] += 6
    if len(pods) > 2:
        _go(stage, pods.pop(0))


def _go(stage: Stage, pod: PodOnStage) -> None:
    pod.exit()
    pod.await_over()
    stage.end(pod)
    wait_until(lambda: all(stage.state(id_) == "free" for id_ in pod.ids))


def _told(done: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in done.items())


def _memory(cgroup: Path) -> str:
    stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    own = _mib(int(stat["anon"]) + int(stat["kernel"]))
    current = _mib(int((cgroup / "memory.current").read_text()))
    return f"memory.peak {_peak(cgroup)}, now {current} with cached files, {own} without"


def _peak(cgroup: Path) -> str:
    return _mib(int((cgroup / "memory.peak").read_text()))


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
