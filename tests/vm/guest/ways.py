"""The two ways in which the daemon is run in the guest: as root with all there is, and as the chart does."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from forked import Forked, Template
from vm.guest import pods
from vm.guest.syscalls import NEW_NETWORK, check, libc
from vm.modes import mode_of

Daemon = subprocess.Popen[bytes] | Forked
"""A daemon's process, or that of who started it."""

_AS_POD = Path(__file__).with_name("as_pod.py")
_PATIENCE = 20.0
_SPECS = Path("/var/run/cdi")


@dataclass(frozen=True, slots=True)
class Plain:
    """As root, with every capability and the node's own files; its configuration is in `folder`."""

    folder: Path
    state: Path
    template: Template

    def start(self, name: str, environment: Mapping[str, str], log: BinaryIO) -> Daemon:
        """Start the daemon in the mode *name*, with *environment* added to ours."""
        mode = mode_of(name)
        if mode.by_claims or "deviceListStrategy" in mode.changes:
            _SPECS.mkdir(exist_ok=True)
        config = self.folder / "config.json"  # JSON is YAML
        config.write_text(
            json.dumps({"stateDir": str(self.state), "http": {"port": 0}, **mode.settings})
        )
        run = ("run", "--config", str(config))
        first = f"from vm.guest import limits; limits.{mode.limit}()" if mode.limit else ""
        return self.template.daemon(
            *run, environment={**os.environ, **environment}, log=log, first=first
        )


@dataclass(slots=True)
class AsChart:
    """As the one container of a pod that is what the chart made for the mode (see charts.py)."""

    folder: Path
    made: dict[str, Any] = field(default_factory=dict)
    """The pod and the files of its ConfigMaps."""
    _pod: pods.Pod | None = None
    _starts: int = 0

    def start(self, name: str, environment: Mapping[str, str], log: BinaryIO) -> Daemon:
        """Start the daemon in the mode *name*, each time in a pod of its own."""
        self.made = json.loads(Path(os.environ["CHART"]).read_text())[name]
        self._forget()
        self._pod = pods.make(str(uuid.uuid4()), _qos(self.container))
        self._starts += 1
        _limit(self.cgroup, self.container)
        work = self.folder / "pod"
        work.mkdir(exist_ok=True)
        file = work / "container.json"
        given = {
            "cgroup": str(self.cgroup),
            "image": os.environ["IMAGE"],
            "command": [*self._image["Entrypoint"], *self.container["args"]],
            "environment": self._environment,
        }
        file.write_text(json.dumps({**self.made, **given}))
        return subprocess.Popen(
            [sys.executable, str(_AS_POD), str(file)],
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )

    @property
    def container(self) -> Mapping[str, Any]:
        """The container's part of the manifest."""
        (container,) = self.made["pod"]["containers"]
        return dict(container)

    @property
    def cgroup(self) -> Path:
        """The container's cgroup."""
        assert self._pod is not None, "no daemon was started as the chart does"
        return self._pod.container(f"holdfast-{self._starts}")

    @property
    def pid(self) -> int:
        """The daemon's pid on the node: not that of the entry point, nor of who waits for that."""
        return max(map(int, (self.cgroup / "cgroup.procs").read_text().split()))

    def kill(self) -> None:
        """End the daemon as a crash does."""
        os.kill(self.pid, signal.SIGKILL)

    def probe(self, name: str) -> tuple[int, str]:
        """Return the status and the text of a probe of the manifest, such as readinessProbe."""
        return self.fetch(self.container[name]["httpGet"]["path"])

    def fetch(self, path: str) -> tuple[int, str]:
        """Return the status and the text of what the daemon serves by HTTP.

        Kubelet reaches the pod by its address; here somebody steps into its network for a moment.
        """
        (port,) = self.container["ports"]
        answers: list[tuple[int, str]] = []

        def ask() -> None:
            _enter_network(self.pid)
            connection = http.client.HTTPConnection("127.0.0.1", port["containerPort"], timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", path)
                answer = connection.getresponse()
                answers.append((answer.status, answer.read().decode()))

        thread = threading.Thread(target=ask, daemon=True)  # whose namespace ends with it
        thread.start()
        thread.join(_PATIENCE)
        assert answers, f"{path} was not answered"
        return answers[0]

    def doctor(self) -> list[dict[str, Any]]:
        """Return the findings of `holdfast doctor` in the container, as by `kubectl exec`."""
        *_, holdfast = self._image["Entrypoint"]  # as a person types it: without what starts it
        add = self.container["securityContext"]["capabilities"]["add"]
        bounding = ",".join(["-all", *(f"+{name.lower()}" for name in add)])
        variables = {each["name"]: each.get("value", "") for each in self.container["env"]}
        asked = subprocess.run(
            [
                *("nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--net"),
                *("--pid", "--cgroup", "--root", "--wd=/", "setpriv", "--inh-caps=-all"),
                *(f"--bounding-set={bounding}", "--no-new-privs"),
                *(holdfast, "doctor", "--output", "json"),
            ],
            env={**self._environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.stdout.startswith("{"), f"{asked.stdout}{asked.stderr}"
        return list(json.loads(asked.stdout)["findings"])

    @property
    def _image(self) -> dict[str, Any]:
        """What the image says about its containers."""
        return dict(json.loads(os.environ["IMAGE_CONFIG"]))

    @property
    def _environment(self) -> dict[str, str]:
        variables = (line.split("=", 1) for line in self._image["Env"])
        return {"HOME": "/root", **dict(variables)}

    def _forget(self) -> None:
        """Remove the cgroups of the pod that was, whose daemon has ended."""
        if self._pod is not None and self._pod.path.exists():
            self._pod.kill()
            self._pod.remove()


def _enter_network(pid: int) -> None:
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        check(libc.setns(network, NEW_NETWORK), "enter the pod's network")
    finally:
        os.close(network)


def _qos(container: Mapping[str, Any]) -> pods.Qos:
    resources = container.get("resources", {})
    asked, limits = resources.get("requests", {}), resources.get("limits", {})
    if not asked and not limits:
        return "besteffort"
    whole = {"cpu", "memory"} <= set(limits) and asked in ({}, limits)
    return "guaranteed" if whole else "burstable"


def _limit(cgroup: Path, container: Mapping[str, Any]) -> None:
    """Set the memory limit of the manifest, and count the memory in any case."""
    folder = pods.CGROUP
    for part in cgroup.relative_to(pods.CGROUP).parts:
        (folder / "cgroup.subtree_control").write_text("+memory")
        folder /= part
    limit = container.get("resources", {}).get("limits", {}).get("memory")
    if limit is not None:
        assert limit.endswith("Mi"), limit
        (cgroup / "memory.max").write_text(str(int(limit.removesuffix("Mi")) << 20))
