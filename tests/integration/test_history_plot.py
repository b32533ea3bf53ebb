"""The picture of a real history, drawn by the command on a simulated node."""

import xml.etree.ElementTree as ET
from pathlib import Path

from fakes.stage import CHIPS, TPU, Stage, pod, stage
from holdfast.cli.plot import spans

A, B, *_ = CHIPS


async def _states(node: Stage, device: str) -> list[str]:
    rows = await node.asked("history", device=device)
    return [each.kind for each in spans(rows, rows[0]["at"], rows[-1]["at"] + 1)]


def _rows(drawn: str) -> dict[str, str]:
    """Return what is told of the blocks of each device."""
    rows = ET.fromstring(drawn).iterfind("{*}g")
    return {row[0].text or "": "".join(row.itertext()) for row in rows}


async def test_the_picture_shows_who_waited_for_a_device_and_who_had_it(short_path: Path) -> None:
    async with stage(short_path) as node:
        first = await node.run(pod("first", runs_for=600))
        await node.until_named(first)
        (device,) = node.ids(first)
        other = B if device == A else A
        node.kubelet.count(TPU, other)
        await node.allocate(other)

        picture = short_path / "picture.svg"
        done = await node.command("history", "--since", "1h", "--plot", str(picture))
        assert (done.returncode, done.stdout) == (0, f"wrote {picture}\n"), done.stderr
        shown = _rows(picture.read_text("utf-8"))
        assert shown.keys() == {device, other}
        assert "default/first" in shown[device]
        assert "waits to start" in shown[other]
        assert await _states(node, device) == ["waits", "held"]
        assert await _states(node, other) == ["waits"]

        only = await node.command("history", f"{TPU}/{device}", "--plot", "-")
        assert _rows(only.stdout).keys() == {device}
        failed = await node.command("history", "--plot", str(short_path / "gone/picture.svg"))
        assert failed.returncode == 1
        assert failed.stderr.startswith(f"holdfast: cannot write {short_path}/gone/picture.svg: ")

        await node.end(first)

        async def released() -> bool:
            return device not in await node.locks()

        await node.until(released, "the lock to be free")
        states = await _states(node, device)
        assert (states[:3], states[-1]) == (["waits", "held", "releasing"], "free")
        await node.stop()
        down = await node.command("history", "--plot", "-")
        assert "releasing" in _rows(down.stdout)[device], "as the ledger has it"
