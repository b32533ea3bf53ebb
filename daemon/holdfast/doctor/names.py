"""The names of files that parts above the doctor give, and that it looks for all the same."""

CONTROL_SOCKET = "control.sock"
"""In the state folder: where the daemon answers the command line."""
KUBELET_SOCKET = "kubelet.sock"
"""In the plugin folder: where kubelet takes registrations."""
CHECKPOINT = "kubelet_internal_checkpoint"
"""In the plugin folder: kubelet's own book of who has which device."""
