"""Records as JSON: validated and decoded from requests, encoded for answers."""
