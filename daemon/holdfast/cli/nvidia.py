"""The flags of NVIDIA's device plugin on `holdfast run`, so that its arguments still work."""

from functools import partial

import click


class NvidiaCommand(click.Command):
    """A command that takes these flags too; in it, `given` returns those that were used.

    The help does not list them: docs/nvidia.md says what each means.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return what the command takes; called when it is run, or its own help is asked for."""
        from holdfast.settings.nvidia_plugin import flags  # noqa: PLC0415 - no other command needs it

        return [*super().get_params(ctx), *(_option(*each) for each in flags().items())]


def given() -> dict[str, str]:
    """Return the flags that the running command was given, by name."""
    found: dict[str, str] = click.get_current_context().meta.get(__name__, {})
    return found


def _option(flag: str, needs_none: bool) -> click.Option:
    option = partial(click.Option, [f"--{flag}"], hidden=True, expose_value=False, callback=_note)
    # click allows a flag without a value only where flag_value says what it means.
    return option(is_flag=False, flag_value="true") if needs_none else option()


def _note(context: click.Context, option: click.Parameter, text: str | None) -> None:
    if text is not None:
        flag = option.opts[0].removeprefix("--")
        context.meta.setdefault(__name__, {})[flag] = text
