"""A kubectl for tests: a program that answers as kubectl does, for a cluster that a file describes.

`exec` in a node's pod runs the real `holdfast` beside the daemon of a simulated node. Other pods hang,
or fail with what kubectl 1.32 printed when an API server answered so.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

_MANIFEST = Path(__file__).parents[2] / "deploy/manifests/holdfast.yaml"

DEAD_NODE = "Error from server: error dialing backend: dial tcp 10.0.0.12:10250: i/o timeout"
"""What `exec` prints where the API server cannot reach kubelet."""
NO_CONTAINER = 'error: unable to upgrade connection: container not found ("holdfast")'
"""What it prints where kubelet does not run the container."""
FORBIDDEN = (
    'Error from server (Forbidden): pods is forbidden: User "ana" cannot list resource "pods" in API '
    'group "" at the cluster scope'
)


class Cluster:
    """Nodes with daemons' pods, and the program that asks about them."""

    def __init__(self, folder: Path) -> None:
        """Keep all in *folder*."""
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._file = folder / "cluster.json"
        self._calls = folder / "calls"
        self._content: dict[str, Any] = {"pods": [], "nodes": {}, "exec": {}, "refused": ""}
        program = self.bin / "kubectl"
        own = f"{sys.executable} {Path(__file__).resolve()} {self._file} {self._calls}"
        self._turns = folder / "turns"
        program.write_text(
            f'#!/bin/sh\necho + >>{self._turns}\n{own} "$@"\nstatus=$?\n'
            f"echo - >>{self._turns}\nexit $status\n"
        )
        program.chmod(0o755)
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which this kubectl is found."""
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call so far."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else ()
        return [json.loads(line) for line in lines]

    @property
    def most_at_a_time(self) -> int:
        """How many calls there were at a time, at the most, if all have ended."""
        turns = (1 if each == "+" else -1 for each in self._turns.read_text().split())
        return max(accumulate(turns))

    def runs(self, node: str, config: Path, **labels: str) -> None:
        """Let a daemon with *config* run on *node*."""
        self._add(node, labels, {"config": str(config)})

    def hangs(self, node: str, pids: Path, **labels: str) -> None:
        """Let a question to *node* have no answer; who asks is noted in *pids*."""
        self._add(node, labels, {"pids": str(pids)})

    def fails(self, node: str, said: str, **labels: str) -> None:
        """Let a question to *node* fail."""
        self._add(node, labels, {"said": said, "status": 1})

    def answers(self, node: str, output: str, status: int = 0) -> None:
        """Let *node* answer each question with *output*."""
        self._add(node, {}, {"output": output, "said": "", "status": status})

    def leaves_helper(self, node: str, pids: Path, output: str) -> None:
        """Let *node* answer *output*, and a program go on that kubectl started; it is in *pids*."""
        self._add(node, {}, {"helper": str(pids), "output": output, "said": "", "status": 0})

    def waits(self, node: str, reason: str) -> None:
        """Let the daemon's container on *node* wait for *reason*."""
        state = {"waiting": {"reason": reason, "message": "back-off 5m0s restarting"}}
        self._add(node, {}, {"said": NO_CONTAINER, "status": 1}, state=state)

    def has_none(self, node: str, **labels: str) -> None:
        """Let *node* have no daemon."""
        self._content["nodes"][node] = labels
        self._write()

    def refuses(self, said: str) -> None:
        """Let the API server refuse to list pods."""
        self._content["refused"] = said
        self._write()

    def _add(
        self,
        node: str,
        labels: Mapping[str, str],
        how: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        made = daemon_pod(node, state=state)
        self._content["nodes"][node] = labels
        self._content["pods"].append(made)
        self._content["exec"][made["metadata"]["name"]] = how
        self._write()

    def _write(self) -> None:
        made = self._file.with_suffix(".new")
        made.write_text(json.dumps(self._content))
        made.replace(self._file)


def daemon_pod(
    node: str,
    *,
    namespace: str = "holdfast",
    name: str = "",
    state: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the pod of a daemon as the API server has it: of the manifest's template, with a status."""
    documents = yaml.safe_load_all(_MANIFEST.read_text("utf-8"))
    (template,) = (each["spec"]["template"] for each in documents if each["kind"] == "DaemonSet")
    running = {"running": {"startedAt": "2026-11-23T09:00:00Z"}}
    status = {
        "name": "holdfast",
        "ready": state is None,
        "restartCount": 0,
        "started": state is None,
        "state": state or running,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": name or f"holdfast-{node}",
            "namespace": namespace,
        },
        "spec": {**template["spec"], "nodeName": node},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


def _main(file: str, calls: str, arguments: list[str]) -> int:
    with Path(calls).open("a") as log:
        log.write(json.dumps(arguments) + "\n")
    cluster = json.loads(Path(file).read_text())
    asked = _parsed(arguments)
    if asked.verb == "exec":
        return _exec(cluster, asked)
    if asked.what == "nodes":
        names = [
            f"node/{name}" for name, has in cluster["nodes"].items() if _fits(has, asked.selector)
        ]
        print("\n".join(names))
        return 0
    found = [
        each
        for each in cluster["pods"]
        if asked.all_namespaces or each["metadata"]["namespace"] == (asked.namespace or "default")
        if _fits(each["metadata"]["labels"], asked.selector)
    ]
    # An empty list is printed with an error, too.
    items = [] if cluster["refused"] else found
    print(
        json.dumps({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {}}, indent=4)
    )
    if cluster["refused"]:
        print(cluster["refused"], file=sys.stderr)
    return bool(cluster["refused"])


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """Return what the real kubectl makes of *arguments*; it knows no other flags."""
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--context", "--kubeconfig", "--request-timeout"):
        shared.add_argument(flag)
    shared.add_argument("--namespace", "-n", action="append")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before, rest = shared.parse_known_args(arguments[:end])
    parser = argparse.ArgumentParser(allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    get = verbs.add_parser("get")
    get.add_argument("what", choices=["pods", "nodes"])
    get.add_argument("--all-namespaces", action="store_true")
    get.add_argument("--selector", required=True)
    get.add_argument("--output", required=True)
    run = verbs.add_parser("exec")
    run.add_argument("pod")
    run.add_argument("--container", required=True)
    run.add_argument("--stdin", action="store_true")
    run.add_argument("--tty", action="store_true")
    asked = parser.parse_args(rest)
    asked.namespace = before.namespace[-1] if before.namespace else None
    asked.words = arguments[end + 1 :]
    return asked


def _exec(cluster: dict[str, Any], asked: argparse.Namespace) -> int:
    (pod,) = (
        each
        for each in cluster["pods"]
        if each["metadata"]["name"] == asked.pod
        if each["metadata"]["namespace"] == asked.namespace
    )
    assert asked.container in {each["name"] for each in pod["spec"]["containers"]}
    how = cluster["exec"][asked.pod]
    if "pids" in how:
        with subprocess.Popen(["sleep", "120"]) as child, Path(how["pids"]).open("a") as pids:
            pids.write(f"{os.getpid()}\n{child.pid}\n")
            pids.flush()
            child.wait()
    if "helper" in how:  # it has our output, as the helpers do that keep a login
        helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(how["helper"]).write_text(f"{helper.pid}\n")
    if "config" in how:
        # The container has HOLDFAST_CONFIG in its environment.
        done = subprocess.run(
            [sys.executable, "-m", *asked.words],
            env={**os.environ, "HOLDFAST_CONFIG": how["config"]},
            check=False,
        )
        if done.returncode:
            sys.stdout.flush()
            print(f"command terminated with exit code {done.returncode}", file=sys.stderr)
        return done.returncode
    print(how.get("output", ""), end="")
    print(how["said"], file=sys.stderr)
    status: int = how["status"]
    return status


def _fits(labels: Mapping[str, str], selector: str) -> bool:
    return all(labels.get(key) == value for key, _, value in _pairs(selector))


def _pairs(selector: str) -> Iterable[tuple[str, str, str]]:
    return (each.partition("=") for each in selector.split(","))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2], sys.argv[3:]))
