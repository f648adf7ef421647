"""The node's command line: `tidelog node` and `tidelog log`."""
