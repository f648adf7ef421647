"""The web page `/ui`: its files, and the figures of the last hour that it draws."""
