"""Checks and parts of requests that any route uses: parameters, headers, media types, JSON structure."""
