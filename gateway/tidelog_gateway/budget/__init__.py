"""Bounded memory and connections: budgets for requests and answers, and load shedding."""
