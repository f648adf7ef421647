"""The demonstration: a year of flights, published over HTTP and natively, read over a WebSocket and by Spark."""
