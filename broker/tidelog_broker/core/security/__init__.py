"""Who somebody is, what he may do, and how much of it."""
