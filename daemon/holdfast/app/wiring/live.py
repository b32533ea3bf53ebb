"""The settings in use, and the sections of them that parts follow while the daemon runs."""

from collections.abc import Callable

from holdfast.runtime.watched import Watched
from holdfast.settings import Settings
from holdfast.settings.named import document_name


class LiveSettings:
    """Publishes each section that holds a key which is taken on live (settings.reloading)."""

    def __init__(self, settings: Settings) -> None:
        """Begin with *settings*."""
        self.whole = settings
        """All settings, those included that parts were built by and do not follow."""
        self.document = document_name(settings)
        """The named document that they were read from, empty for none."""
        self.refused = ""
        """Why the configuration as it is now is not the one in use; empty: it is."""
        self.unread: Callable[[], str] = lambda: ""
        """Returns why the node's label that names its document cannot be read; empty: it is."""
        self.discovery = Watched(settings.discovery)
        self.drift = Watched(settings.drift)
        self.gate = Watched(settings.gate)
        self.labels = Watched(settings.labels)
        self.question = Watched(settings.kubelet.question)
        self.reclaim = Watched(settings.reclaim)

    def put(self, settings: Settings) -> None:
        """Publish *settings*, which differ from those before only in keys that are live."""
        self.whole = settings
        self.discovery.set(settings.discovery)
        self.drift.set(settings.drift)
        self.gate.set(settings.gate)
        self.labels.set(settings.labels)
        self.question.set(settings.kubelet.question)
        self.reclaim.set(settings.reclaim)
