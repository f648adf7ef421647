"""The demonstration: a year of real flights in over HTTP and natively, out over a WebSocket, analysed by Spark."""
