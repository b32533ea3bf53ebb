"""A cluster of one node that goes by the document that its label names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from fakes.controlplane import NODE, ControlPlane
from fakes.stage import Stage, stage
from simulated.cluster.objects import EVENTS, NODES
from simulated.cluster.store import Place

_NODE = Place(kind=NODES, name=NODE)
_LABEL, _THEIRS = "holdfast.dev/config", "nvidia.com/device-plugin.config"


class Cluster:
    """An API server with one node, and the folder in which its ConfigMap is mounted."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        folder.mkdir()

    def label(self, **labels: str) -> None:
        """Give the node these labels alone."""
        node = self.plane.store.get(_NODE)
        keys = {"ours": _LABEL, "theirs": _THEIRS}
        node["metadata"]["labels"] = {keys[each]: value for each, value in labels.items()}
        self.plane.store.update(_NODE, node)

    def document(self, name: str, **content: Any) -> None:
        """Write a document as a whole."""
        draft = self.folder / f"..{name}"
        draft.write_text(yaml.safe_dump(content))
        draft.rename(self.folder / name)

    def refusals(self) -> list[str]:
        """Return what Events say of configurations that cannot be used."""
        found = self.plane.store.every(EVENTS)
        return [each["message"] for each in found if each["reason"] == "ConfigurationRefused"]

    @asynccontextmanager
    async def daemon(self, folder: Path, *, chips: int = 1) -> AsyncIterator[Stage]:
        """Yield a node whose daemon goes by the documents."""
        async with stage(
            folder,
            chips=chips,
            own_process=True,
            environment={**self.plane.server.environment, "NODE_NAME": NODE},
            named={"folder": str(self.folder)},
            events={"enabled": True},
            dra={"serviceAccount": str(self.plane.account)},
        ) as node:
            yield node
