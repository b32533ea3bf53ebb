"""The command line: `holdfast` runs the daemon, or one of the commands that ask it questions."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence

import click

import holdfast
from holdfast.cli.nvidia import PLUGIN
from holdfast.cli.tables import say
from holdfast.errors import HoldfastError

_INTERRUPTED = 130
_UNWRITABLE = frozenset({errno.EPIPE, errno.ENOSPC})
_RUN = "run"


def device_plugin() -> int:
    """Run the daemon under the name of NVIDIA's device plugin; it takes that plugin's flags."""
    given = sys.argv[1:]
    asked = given[:1] in (["--version"], ["-version"], ["--v"], ["-v"])
    return main(["--version"] if asked else [_RUN, *given], called=PLUGIN)


def main(arguments: Sequence[str] | None = None, *, called: str | None = None) -> int:
    """Run one command; return 0, 1 for an error, 2 for wrong usage.

    *called* is the name of the program, None for what it was started as.
    """
    try:
        code = program(args=arguments, prog_name=called, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED
    except HoldfastError as error:
        say(f"holdfast: {error}", error=True)
        return 1
    except OSError as error:
        # A command that asks writes to standard output alone.
        if error.errno not in _UNWRITABLE or _RUN in (arguments or sys.argv[1:])[:1]:
            raise
        return _unwritten(error)
    return code if isinstance(code, int) else 0


def _unwritten(error: OSError) -> int:
    """Say that standard output takes nothing, unless its reader has left; return 1."""
    # Python would try to write the rest once more as it ends, and show a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:
        say(f"holdfast: cannot write the answer: {error.strerror}", error=True)
    return 1


class Commands(click.Group):
    """Every command; `run` is found without loading the others, which the daemon would keep."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in order."""
        del ctx
        return sorted((_RUN, *_others()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        del ctx
        if cmd_name != _RUN:
            return _others().get(cmd_name)
        from holdfast.cli.run import run  # noqa: PLC0415 - as the others

        return run


@click.group(
    cls=Commands,
    epilog="\b\nExample:\n  holdfast status",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(holdfast.__version__, prog_name="holdfast")
def program() -> None:
    """A Kubernetes device plugin that gives each accelerator to one pod at a time."""


def _others() -> Mapping[str, click.Command]:
    from holdfast.cli.commands import COMMANDS  # noqa: PLC0415 - the daemon does without

    return {each.name: each for each in COMMANDS if each.name is not None}
