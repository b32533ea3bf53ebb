"""Memory on a whole node: what a pod with a device may use, as the running daemon tells it."""

import asyncio
from pathlib import Path
from typing import Any

from fakes.http import served
from fakes.stage import TPU, pod, stage
from holdfast.cli.tables import table
from ports import free_port

MIB = 1 << 20


async def test_who_has_devices_is_told_with_its_limit_usage_headroom_and_memlock(
    short_path: Path,
) -> None:
    port = free_port()
    async with stage(short_path, chips=2, http={"port": port}) as node:
        one = await node.run(pod("one", chips=2))
        proc, cgroup = node.node.root.proc, node.node.root.cgroup
        (proc / "meminfo").write_text("MemTotal: 1048576 kB\n")
        slice_ = f"pod{one.uid.replace('-', '_')}.slice"
        (folder,) = [each for each in cgroup.rglob("*") if each.name.endswith(slice_)]
        (folder / "memory.max").write_text(f"{400 * MIB}\n")
        (folder / "memory.current").write_text(f"{150 * MIB}\n")
        (folder / "memory.stat").write_text(f"active_file {50 * MIB}\n")

        rows: list[dict[str, Any]] = []
        while len(rows) < 2:  # it runs, and opens its devices in a moment
            rows = await node.asked("holders") or []
        row, other = rows
        assert row["pid"] == other["pid"]

        told = {key: row[key] for key in ("limit", "limitAt", "usage", "headroom")}
        assert told == {
            "limit": 400 * MIB,
            "limitAt": f"/{folder.relative_to(cgroup)}",
            "usage": 100 * MIB,
            "headroom": 300 * MIB,
        }
        assert "300.0 MiB" in table([row])[1]

        async def counted() -> bool:
            _, metrics = await asyncio.to_thread(served, port, "/metrics")
            return f'holdfast_holders{{resource="{TPU}"}} 1.0' in metrics

        await node.until(counted, "the one process to be counted once")
