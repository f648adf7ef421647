"""Flow control that nodes and gateways share: budgets of bytes, closing of slow holders, fair scheduling by caller."""
