"""The names of the sockets and files that more than one part has to know.

A module of its own, below all rooms: the rooms that share a name may not import each other.
"""

KUBELET_SOCKET = "kubelet.sock"
"""In the plugin folder: where kubelet takes registrations. Its PodResources socket has it too."""

KUBELET_CHECKPOINT = "kubelet_internal_checkpoint"
"""In the plugin folder: which pod has which devices, as kubelet wrote it."""

CONTROL_SOCKET = "control.sock"
"""In the state folder: where the daemon answers the command line."""

CONFIG_LABEL = "config-label"
"""In the state folder: the last value of the node's label that named a document that works."""

CONFIG_DOCUMENT = "config-document"
"""In the state folder: that document, as it was when it worked last."""

LONGEST_SOCKET_PATH = 107
"""The bytes of a Unix socket's path that the kernel takes."""

PLUGIN_SOCKET_BYTES = 32
"""What the names of a plugin's sockets take beside their prefix: a digest, a pid, a number."""

DRA_SOCKET = "dra.sock"
"""In the DRA driver's own folder: where kubelet has claims prepared."""

CLAIM_STATE = "dra_manager_state"
"""In kubelet's root folder: which pods use which claims, as kubelet wrote it."""

PLUGINS, PLUGINS_REGISTRY = "plugins", "plugins_registry"
"""In kubelet's root folder: the folders of DRA drivers, and where kubelet finds new ones."""
