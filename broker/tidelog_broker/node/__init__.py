"""A node's life: its founding and admission, its part in the cluster, start, serving, stop."""
