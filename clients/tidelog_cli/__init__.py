"""The `tidelog` command: topics, produce, consume, administration, and the sub-commands of installed parts.

The command depends on the client only. The node, the gateway and the benchmarks register their sub-commands through the
entry-point group `tidelog.commands`, so that no import cycle exists and the base installation stays small.
"""
