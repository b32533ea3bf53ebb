"""What the cluster is told: Events about pods and the node, and a condition of the node."""
