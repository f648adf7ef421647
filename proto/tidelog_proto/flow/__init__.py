"""Flow control that nodes and gateways share: byte budgets, load shedding, and fair scheduling by caller."""
