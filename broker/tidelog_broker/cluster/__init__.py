"""The node's view of the cluster: liveness of nodes, partition owners, and the rate of fetching history."""
