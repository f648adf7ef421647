"""The `tidelog` command: topics, produce, consume, the cluster, and whatever installed parts add.

It stands on the client alone. The node, the gateway and the benchmarks bring their own sub-commands through the
entry-point group `tidelog.commands`, so that imports run one way and the bare install stays small.
"""
