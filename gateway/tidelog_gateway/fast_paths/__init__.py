"""Fast paths: frequent requests that are answered without the framework."""
