"""The flags of NVIDIA's device plugin on `holdfast run`, so that its arguments can stay."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from holdfast.settings.nvidia_plugin import flags


def with_nvidia(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add its flags to *command*, in which `given` tells which were given.

    They are not among those that help shows: docs/nvidia.md says what each means.
    """
    for flag, needs_none in flags().items():
        option = partial(click.option, f"--{flag}", hidden=True, expose_value=False, callback=_note)
        # That a value is left out has a meaning only where one is named for it.
        alone = option(is_flag=False, flag_value="true") if needs_none else option()
        command = alone(command)
    return command


def given() -> dict[str, str]:
    """Return which of its flags the command that runs was given."""
    found: dict[str, str] = click.get_current_context().meta.get(__name__, {})
    return found


def _note(context: click.Context, option: click.Parameter, text: str | None) -> None:
    if text is not None:
        flag = option.opts[0].removeprefix("--")
        context.meta.setdefault(__name__, {})[flag] = text
