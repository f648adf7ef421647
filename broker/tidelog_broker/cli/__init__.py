"""The command line of a node: `tidelog node` and `tidelog log`."""
