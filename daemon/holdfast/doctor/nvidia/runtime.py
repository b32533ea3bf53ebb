"""Which runtime nvidia-container-runtime starts: it changes a container, and hands it on."""

from msgspec import Struct

from holdfast.doctor.containerd.facts import Unreadable, read_toml
from holdfast.doctor.containerd.merge import table
from holdfast.doctor.node import Node
from holdfast.doctor.programs import find_program, is_program

PROGRAM = "nvidia-container-runtime"
TOOLKIT = "/usr/local/nvidia/toolkit"
"""Where GPU Operator's toolkit container installs its programs."""
CONFIGS = (
    f"{TOOLKIT}/.config/{PROGRAM}/config.toml",
    f"/etc/{PROGRAM}/config.toml",
)
_NAMES = frozenset({PROGRAM, *(f"{PROGRAM}.{mode}" for mode in ("cdi", "legacy", "experimental"))})
_DEFAULT = ("docker-runc", "runc", "crun")


class LowLevel(Struct, frozen=True, kw_only=True):
    """The runtime to which one nvidia-container-runtime hands containers on."""

    config: str = ""
    """Its configuration; empty if there is none, and it uses its defaults."""
    problem: str = ""
    """Why the configuration cannot be read."""
    runtimes: tuple[str, ...] = _DEFAULT
    starts: str = ""
    """The first of `runtimes` on the node, which is the one it starts; empty if none is there."""

    def starts_any(self, name: str) -> bool:
        """Tell whether it starts a program whose name begins with *name*."""
        return self.starts.rpartition("/")[2].startswith(name)


def low_level(node: Node, program: str, folders: tuple[str, ...]) -> LowLevel | None:
    """Return what *program* starts; None if it is not nvidia-container-runtime.

    *folders* are where it looks for programs.
    """
    folder, _, name = program.rpartition("/")
    if name not in _NAMES:
        return None
    # GPU Operator's is a script that sets where its configuration and programs are.
    operators = folder == TOOLKIT
    config = CONFIGS[0] if operators else CONFIGS[1]
    if not node.path(config).is_file():
        return LowLevel(starts=_first(node, _DEFAULT, folders))
    read = read_toml(node, config)
    if isinstance(read, Unreadable):
        return LowLevel(config=config, problem=read.reason)
    told = table(read.content, PROGRAM).get("runtimes")
    runtimes = tuple(map(str, told)) if isinstance(told, list) and told else _DEFAULT
    places = (TOOLKIT, *folders) if operators else folders
    return LowLevel(config=config, runtimes=runtimes, starts=_first(node, runtimes, places))


def _first(node: Node, names: tuple[str, ...], folders: tuple[str, ...]) -> str:
    for name in names:
        found = name if "/" in name else find_program(node, name, folders)
        if found and is_program(node, found):
            return found
    return ""
