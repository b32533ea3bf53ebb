"""A control server as the daemon has one."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.control.server import PATIENCE, ControlServer, Handler


def control_server(
    folder: Path, handlers: Mapping[str, Handler], *, patience: float = PATIENCE
) -> ControlServer:
    return ControlServer(folder, handlers, patience=patience)
