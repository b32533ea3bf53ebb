"""The settings of logs, probes, metrics and the history."""

from typing import Literal

from holdfast.settings.types import Count, Interval, Port, Section


class History(Section, frozen=True):
    """How much of each device's history is kept in the ledger."""

    per_device: Count = 200
    """How many changes of state are kept for each device; older ones are dropped. Raise it to look
    back further with `holdfast history`; the ledger's file grows with it."""


class Http(Section, frozen=True):
    """The HTTP server for probes (/livez, /readyz) and metrics (/metrics)."""

    address: str = ""
    """The IP address to listen on. Empty: every address of the host, IPv4 and IPv6. Set it to
    127.0.0.1 when only programs on the node may ask; the daemon then needs the node's network."""
    port: Port = 8008
    """The TCP port to listen on. 0 turns probes and metrics off. Change it when another program on
    the host network has the port."""


class Log(Section, frozen=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages that are logged. Set it to debug to look into a problem."""
    format: Literal["auto", "json", "text"] = "auto"
    """How a message is written. auto: text on a terminal, JSON elsewhere. Set it to json or text
    when what collects your logs needs one of them."""


class Liveness(Section, frozen=True):
    """When /livez fails, so that kubelet restarts the container."""

    loop_stall: Interval = Interval(30)
    """How long the event loop may stand still before /livez fails. Raise it when the container is
    restarted on nodes that are only overloaded."""


class Readiness(Section, frozen=True):
    """What /readyz checks in addition to a daemon that works."""

    require_devices: bool = False
    """Whether a node without any device counts as not ready. By default it is ready and says so: a
    node may come up before its driver, and a node without accelerators is not broken. Set it to
    true where every node that holdfast runs on must have devices."""
