"""The command line of the plugin: `kubectl holdfast COMMAND`."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import NoReturn

from kubectl_holdfast import __version__
from kubectl_holdfast.commands import Query, change, complain, draw, show, top
from kubectl_holdfast.daemons import FleetError
from kubectl_holdfast.kubectl import PODS, DaemonSelection, Kubectl
from kubectl_holdfast.text import MOST_MOVES

_USAGE = 3
_CANNOT_ASK = 2
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_ENDS = """\
exit status: 0 all is well; 1 something is wrong on a node; 2 some node did not answer, or the API
server; 3 wrong usage. drain and undrain: that of the command on the node.
"""
_EPILOG = f"""\
kubectl's own options (--context, --kubeconfig, -n and the others) are passed on to it.

{_ENDS}
example: kubectl holdfast locks --selector pool=train --context lab
"""

# kubectl's own, by the same names; each takes a value.
_VALUES = (
    *("--as", "--as-group", "--as-uid", "--cache-dir", "--certificate-authority"),
    *("--client-certificate", "--client-key", "--cluster", "--context", "--kubeconfig"),
    *("--namespace", "--password", "--request-timeout", "--server", "--tls-server-name"),
    *("--token", "--user", "--username", "--v"),
)
_SHORT = {"--namespace": ["-n"], "--server": ["-s"], "--v": ["-v"]}
_SWITCHES = ("--disable-compression", "--insecure-skip-tls-verify", "--match-server-version")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors end with a status that says nothing of a node."""

    def error(self, message: str) -> NoReturn:
        """Print *message* and how it is used, and end."""
        self.print_usage(sys.stderr)
        self.exit(_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    for stream in (sys.stdout, sys.stderr):  # names need not be in the terminal's encoding
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    common = _common()
    shared, rest = common.parse_known_args(arguments)
    options = _parser(common).parse_args(rest)
    asking = Query(
        kubectl=Kubectl(
            shared.flags,
            namespaced=any(each.startswith("--namespace") for each in shared.flags),
            timeout=shared.timeout,
        ),
        which=DaemonSelection(nodes=tuple(shared.node), selector=shared.selector, pods=shared.pods),
        parallel=shared.parallel,
        output=shared.output,
    )
    try:
        status = _run(common, asking, options)
        sys.stdout.flush()
    except FleetError as error:
        complain(str(error))
        return _CANNOT_ASK
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read the output has enough, as in `… | head`
        # For what is flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _run(parser: _Parser, asking: Query, options: argparse.Namespace) -> int:
    name: str = options.command
    if name in {"drain", "undrain"}:
        if len(asking.which.nodes) != 1 or asking.which.selector:
            parser.error(f"{name} changes exactly one node: name it (--node NODE)")
        reason = ["--reason", options.reason] if options.reason else []
        removal = ["--for-removal"] if getattr(options, "for_removal", False) else []
        return change(asking, [name, *reason, *removal])
    if name == "top":
        return top(asking, options.every)
    if name == "history":
        return _history(parser, asking, options)
    if name == "why":
        return show(asking, [name, options.what])
    return show(asking, [name])


def _history(parser: _Parser, asking: Query, options: argparse.Namespace) -> int:
    limit = ["--limit", str(options.limit)] if options.limit else []
    since = ["--since", options.since] if options.since else []
    device = [options.device] if options.device else []
    if not options.plot:
        return show(asking, ["history", *limit, *since, *device])
    if asking.output:
        parser.error("--plot draws a picture: it does not go with --output")
    # Who had a device when the period began, older records say.
    most = limit or (["--limit", str(MOST_MOVES)] if since else [])
    try:
        seconds = _seconds(options.since) if since else None
    except argparse.ArgumentTypeError as error:
        parser.error(f"--since: {error}")
    return draw(asking, ["history", *most, *device], options.plot, seconds)


def _seconds(text: str) -> float:
    """Return how long *text* is, such as ``1h30m``, which the daemons take in the same form."""
    parts = _PART.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return _positive(text)


def _common() -> _Parser:
    """Return the parser of what may be given anywhere on the command line."""
    parser = _Parser(prog="kubectl holdfast", add_help=False, allow_abbrev=False)
    parser.set_defaults(flags=[])
    which = parser.add_argument_group("which nodes (default: all that have a daemon)")
    which.add_argument(
        "--node", action="append", default=[], metavar="NAME", help="this node; repeatable"
    )
    which.add_argument(
        "--selector", "-l", default="", metavar="LABELS", help="the nodes with these labels"
    )
    which.add_argument(
        "--pods",
        default=PODS,
        metavar="LABELS",
        help="the labels of the daemons' pods (%(default)s)",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--output", "-o", default="", choices=["wide", "json"], help="cut nothing, or for programs"
    )
    how.add_argument(
        "--timeout",
        type=_positive,
        default=10.0,
        metavar="SECONDS",
        help="how long one node may take (%(default)g)",
    )
    how.add_argument(
        "--parallel",
        type=_count,
        default=16,
        metavar="N",
        help="how many nodes are asked at a time (%(default)s)",
    )
    kept = partial(parser.add_argument, dest="flags", help=argparse.SUPPRESS)
    for name in _VALUES:
        kept(name, *_SHORT.get(name, ()), action="append", type=f"{name}={{}}".format)
    for name in _SWITCHES:
        kept(name, action="append_const", const=name)
    return parser


def _parser(common: _Parser) -> _Parser:
    parser = _Parser(
        prog="kubectl holdfast",
        description="Ask the holdfast daemons of all nodes, and show what is wrong first.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[common],
            allow_abbrev=False,
        )

    command("status", "show which nodes are ready, and what is wrong")
    command("locks", "list which pod or claim has which device, and what waits for it")
    command("holders", "list the processes that hold devices")
    history = command("history", "show the lock changes of a device, or of all")
    history.add_argument("device", nargs="?", metavar="DEVICE")
    history.add_argument("--limit", type=_count, metavar="N", help="the last changes of each node")
    history.add_argument("--since", metavar="TIME", help="the changes of the last TIME, such as 1h")
    history.add_argument(
        "--plot",
        metavar="FILE",
        help="draw who had which device when into FILE, as SVG; - is the standard output",
    )
    why = command("why", "tell what keeps a device, a pod or a claim, and what would free it")
    why.add_argument("what", metavar="DEVICE|POD|CLAIM")
    command("doctor", "show what is wrong with the nodes; -o wide also says what to do")
    looks = command("top", "show the devices of each node by state, as they change")
    looks.add_argument(
        "--every",
        type=_positive,
        default=5.0,
        metavar="SECONDS",
        help="between looks (%(default)g)",
    )
    drain = command("drain", "start no new pod on the devices of one node (--node)")
    drain.add_argument(
        "--reason", default="", metavar="TEXT", help="status and waiting pods show it"
    )
    drain.add_argument(
        "--for-removal", action="store_true", help="wait until no pod of the node needs the plugin"
    )
    undrain = command("undrain", "end the drain of one node (--node)")
    undrain.add_argument("--reason", default="", metavar="TEXT", help="the history shows it")
    return parser


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < inf:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")


def _count(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no number above 0")
