"""The web page `/ui`: its files, and the metrics of the last hour that it shows."""
