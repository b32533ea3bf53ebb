"""Runs kubectl: finds the daemons' pods, and asks many of them at a time."""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

from kubectl_holdfast.daemons import CONTAINER, Answer, Daemon, FleetError, find_daemons

PODS = "app.kubernetes.io/name=holdfast"
"""The label of the daemons' pods, as the chart sets it."""

_PROGRAM = "holdfast"
# What kubectl and the libraries in it say beside the reason.
_CHATTER = re.compile(
    r"[EIWF]\d{4} |command terminated with exit code|Defaulted container"
    r"|See 'kubectl|Warning: |\s*$"
)
_LEDGER = "; reading its ledger file instead"
"""How a line of the daemon's command ends that answers in the place of a daemon that is down."""
_UNKNOWN = "cannot find "
"""How it begins to say that the node does not have what it was asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSelection:
    """Which daemons are asked: of these `nodes`, of those that `selector` selects, or all."""

    nodes: tuple[str, ...] = ()
    selector: str = ""
    pods: str = PODS


class Kubectl:
    """kubectl with the flags that are the same for each of its calls."""

    def __init__(self, flags: Sequence[str], *, namespaced: bool, timeout: float) -> None:
        """Call it with *flags*; *namespaced*: they name a namespace.

        A call gets *timeout* seconds.
        """
        self._flags = tuple(flags)
        self._namespaced = namespaced
        self._timeout = timeout

    async def daemons(self, which: DaemonSelection) -> list[Daemon]:
        """Return the daemons of *which*; raise FleetError where the API server cannot be asked."""
        nodes: list[str] | None = list(which.nodes) or None
        if which.selector:
            listed = await self._get("nodes", "--selector", which.selector, "--output", "name")
            named = [line.partition("/")[2] for line in listed.split()]
            nodes = [each for each in named if nodes is None or each in nodes]
            if not nodes:
                raise FleetError(f"cannot find a node: the selector {which.selector} selects none")
        everywhere = () if self._namespaced else ("--all-namespaces",)
        listed = await self._get("pods", *everywhere, "--selector", which.pods, "--output", "json")
        found = find_daemons(json.loads(listed)["items"], nodes)
        if not found:
            where = "" if self._namespaced else " of any namespace"
            raise FleetError(
                f"cannot find a daemon: no pod{where} has the label {which.pods} and a container "
                f"{CONTAINER}; name the namespace (-n), or its pods' label (--pods)"
            )
        return found

    async def ask(
        self,
        daemons: Sequence[Daemon],
        question: Sequence[str],
        *,
        text: bool,
        parallel: int,
        told: Callable[[int], None],
    ) -> list[Answer]:
        """Return the answer of each of *daemons*, *parallel* of which are asked at a time.

        The answer is JSON, or *text* for people. *told* is called with how many have answered, each
        time that one has.
        """
        words = question if text else (*question, "--output", "json")
        read = _text if text else json.loads
        places, done = asyncio.Semaphore(parallel), 0

        async def one(daemon: Daemon) -> Answer:
            nonlocal done
            async with places:
                answer = await self._ask(daemon, words, read)
            done += 1
            told(done)
            return answer

        tasks = [asyncio.create_task(one(each)) for each in daemons]
        try:
            return await asyncio.gather(*tasks)
        finally:  # an interrupt ends all of them, and each ends its kubectl
            for task in tasks:
                if not task.cancelling():  # else it waits for its kubectl's end
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def hand_over(self, daemon: Daemon, order: Sequence[str]) -> int:
        """Carry out *order* on a node, with this process's input and output; return its status."""
        terminal = ("--stdin", "--tty") if sys.stdin.isatty() and sys.stdout.isatty() else ()
        with suppress(KeyboardInterrupt):  # kubectl has got it as well, and ends by it
            command = self._exec(daemon, order, *terminal)
            return os.spawnvp(os.P_WAIT, "kubectl", command)  # noqa: S606 - the words are ours
        return 128 + signal.SIGINT

    async def _ask(
        self, daemon: Daemon, words: Sequence[str], read: Callable[[str], Any]
    ) -> Answer:
        if daemon.problem:
            return Answer(daemon=daemon, problem=daemon.problem)
        done = await _run(self._exec(daemon, words), limit=self._timeout)
        if done is None:
            return Answer(daemon=daemon, problem=f"no answer within {self._timeout:g} s")
        status, output, said = done
        lines = said.splitlines()
        note = next((each for each in lines if each.endswith(_LEDGER)), "")
        with suppress(ValueError, RecursionError):
            return Answer(daemon=daemon, content=read(output), note=note)
        reason = _reason(lines, status) if status else "its answer cannot be read"
        if reason.startswith(_UNKNOWN):
            return Answer(daemon=daemon, unknown=reason)
        return Answer(daemon=daemon, problem=reason)

    def _exec(self, daemon: Daemon, words: Sequence[str], *options: str) -> list[str]:
        # A namespace in the flags is the pod's: it was found by it. The later one counts.
        where = ("--namespace", daemon.namespace, daemon.pod, "--container", CONTAINER)
        return ["kubectl", *self._flags, "exec", *options, *where, "--", _PROGRAM, *words]

    async def _get(self, *arguments: str) -> str:
        """Return what `kubectl get` prints; it may ask a person for a login."""
        limit = f"--request-timeout={self._timeout:g}s"
        given = any(each.startswith("--request-timeout") for each in self._flags)
        command = ["kubectl", *self._flags, "get", *arguments, *(() if given else (limit,))]
        done = await _run(command, limit=None)
        assert done is not None  # noqa: S101 - without a limit it ends
        status, output, said = done
        if status:  # it prints an empty list as well
            reason = _reason(said.splitlines(), status)
            everywhere = "(Forbidden)" in reason and "--all-namespaces" in arguments
            advice = "; name the daemons' namespace (-n)" if everywhere else ""
            raise FleetError(f"cannot list {arguments[0]}: {reason}{advice}")
        return output


async def _run(command: Sequence[str], *, limit: float | None) -> tuple[int, str, str] | None:
    """Return status, output and errors of *command*, None where it took over *limit* seconds.

    With a limit it is ended with all that it started, such as a program that fetches a token.
    """
    # Files: a pipe would be open as long as anything has it that kubectl started.
    with TemporaryFile() as output, TemporaryFile() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=None if limit is None else DEVNULL,
                stdout=output,
                stderr=said,
                start_new_session=limit is not None,
            )
        except OSError as error:
            raise FleetError(
                f"cannot run kubectl: {error.strerror or error}; install it, or add it to PATH"
            ) from error
        try:
            async with asyncio.timeout(limit):
                status = await process.wait()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    if limit is None:
                        process.kill()
                    else:
                        os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        texts = []
        for file in (output, said):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return status, texts[0], texts[1]


def _text(output: str) -> str:
    """Return *output*; raise ValueError where there is none."""
    if not output.strip():
        raise ValueError("no output")
    return output


def _reason(lines: Sequence[str], status: int) -> str:
    """Return the line that says why kubectl, or the command in the pod, failed."""
    told = [each for each in lines if not _CHATTER.match(each)] or [each for each in lines if each]
    if not told:
        return f"kubectl ended with status {status} and said nothing"
    return told[-1].strip().removeprefix(f"{_PROGRAM}: ")
