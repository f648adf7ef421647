"""How a run is timed, what it costs, and how its figures are shown."""
