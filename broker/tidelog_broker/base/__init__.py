"""What every room stands on: settings, metrics, threads for blocking work, the management port."""
