"""Data files of a node that is stopped: looked at, printed, put in order, for the commands under `tidelog log`."""
