"""The steps of each request before and after its route."""
