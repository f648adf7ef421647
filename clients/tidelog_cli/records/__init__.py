"""`tidelog produce` and `tidelog consume`: records in and out of a topic."""
