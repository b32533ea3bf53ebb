"""The flags of NVIDIA's device plugin on `holdfast run`, so that its arguments still work."""

from collections.abc import Mapping

import click

PLUGIN = "nvidia-device-plugin"
"""The command of NVIDIA's plugin, which the image has as well."""


class NvidiaCommand(click.Command):
    """A command that takes these flags too; in it, `given` returns those that were used.

    Called as NVIDIA's plugin is, it reads the rest of the arguments as Go does: what follows the
    first that is no flag has no effect. The help does not list the flags: docs/nvidia.md says what
    each means.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return what the command takes; called when it is run, or its own help is asked for."""
        from holdfast.settings.nvidia_plugin import flags  # noqa: PLC0415 - no other command needs it

        return [*super().get_params(ctx), *map(_option, flags())]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read *args*, in which their flags are as Go has them."""
        from holdfast.settings.nvidia_plugin import flags  # noqa: PLC0415 - as above

        if ctx.find_root().info_name == PLUGIN:
            ctx.allow_extra_args, ctx.allow_interspersed_args = True, False
        known = flags()
        return super().parse_args(ctx, [_as_ours(each, known) for each in args])


def given() -> dict[str, str]:
    """Return the flags that the running command was given, by name."""
    found: dict[str, str] = click.get_current_context().meta.get(__name__, {})
    return found


def without_effect() -> list[str]:
    """Return a text for each part of the command line that is passed over."""
    rest = click.get_current_context().args
    if not rest:
        return []
    told = f"{' '.join(rest)} has no effect, as with NVIDIA's plugin: {rest[0]} is no flag"
    return [f"{told}; leave it out"]


def _as_ours(argument: str, flags: Mapping[str, bool]) -> str:
    """Return a flag of theirs with two dashes, and with its value where it needs none.

    Go takes one dash, too, and never what follows for the value of a boolean.
    """
    name, equals, text = argument.partition("=")
    flag = name.removeprefix("-").removeprefix("-")
    if flag == name or flag not in flags:
        return argument
    return f"--{flag}=true" if flags[flag] and not equals else f"--{flag}{equals}{text}"


def _option(flag: str) -> click.Option:
    from holdfast.settings.nvidia_plugin import LISTS  # noqa: PLC0415 - as above

    return click.Option(
        [f"--{flag}"], hidden=True, expose_value=False, callback=_note, multiple=flag in LISTS
    )


def _note(
    context: click.Context, option: click.Parameter, value: str | tuple[str, ...] | None
) -> None:
    text = ",".join(value) if isinstance(value, tuple) and value else value
    if isinstance(text, str):
        flag = option.opts[0].removeprefix("--")
        context.meta.setdefault(__name__, {})[flag] = text
