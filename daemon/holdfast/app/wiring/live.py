"""The settings in use, and what the parts follow of them while the daemon runs."""

from collections.abc import Callable

from holdfast.runtime.watched import Watched
from holdfast.settings import Settings
from holdfast.settings.named import document_name


class LiveSettings:
    """Publishes the settings in use, and whatever parts follow of them."""

    def __init__(self, settings: Settings) -> None:
        """Begin with *settings*."""
        self.in_use = all_of = Watched(settings)
        """All keys; those that take a restart never change here (settings.reloading)."""
        self.document = document_name(settings)
        """The named document that they were read from, empty for none."""
        self.refused = ""
        """Why the configuration as it is now is not the one in use; empty: it is."""
        self.unread: Callable[[], str] = lambda: ""
        """Returns why the node's label that names its document cannot be read; empty: it is."""
        self.allocate = all_of.part(lambda now: now.allocate)
        self.discovery = all_of.part(lambda now: now.discovery)
        self.dra = all_of.part(lambda now: now.dra)
        self.drift = all_of.part(lambda now: now.drift)
        self.gate = all_of.part(lambda now: now.gate)
        self.history = all_of.part(lambda now: now.history)
        self.kubelet = all_of.part(lambda now: now.kubelet)
        self.labels = all_of.part(lambda now: now.labels)
        self.reclaim = all_of.part(lambda now: now.reclaim)
        self.withhold_after: Watched[float] = all_of.part(lambda now: now.withhold_after)

    @property
    def whole(self) -> Settings:
        """All settings as they are now."""
        return self.in_use.value

    def put(self, settings: Settings) -> None:
        """Publish *settings*, which differ from those before only in keys that are live."""
        self.in_use.set(settings)
