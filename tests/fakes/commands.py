"""The command line as people have it: `holdfast` in a process of its own."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


async def holdfast(
    *arguments: str | Path, state: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `holdfast` until it ends, on the state folder *state* where one is given."""
    folder = () if state is None else ("--state-dir", state)
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "holdfast", *arguments, *folder],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=240.0,
        check=False,
    )


@contextmanager
def drain_for_removal(state: Path) -> Iterator["subprocess.Popen[str]"]:
    """Let a `holdfast drain --for-removal` wait until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-um", "holdfast", "drain", "--for-removal", "--state-dir", state],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as asking:
        try:
            yield asking
        finally:
            asking.kill()
