"""The flags of NVIDIA's device plugin on `holdfast run`, so that its arguments still work."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from holdfast.settings.nvidia_plugin import flags


def with_nvidia(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags to *command*; in it, `given` returns those that were used.

    The help does not list them: docs/nvidia.md says what each means.
    """
    for flag, needs_none in flags().items():
        option = partial(click.option, f"--{flag}", hidden=True, expose_value=False, callback=_note)
        # click allows a flag without a value only where flag_value says what it means.
        alone = option(is_flag=False, flag_value="true") if needs_none else option()
        command = alone(command)
    return command


def given() -> dict[str, str]:
    """Return the flags that the running command was given, by name."""
    found: dict[str, str] = click.get_current_context().meta.get(__name__, {})
    return found


def _note(context: click.Context, option: click.Parameter, text: str | None) -> None:
    if text is not None:
        flag = option.opts[0].removeprefix("--")
        context.meta.setdefault(__name__, {})[flag] = text
