"""What a server process sets up: settings, telemetry, standard streams, memory, fair scheduling."""
