"""Setup of server processes: settings, telemetry, standard streams, memory."""
