"""The web page `/ui`: its files."""
