"""Membership: who is alive (SWIM), who is admitted, and the datagrams that say so."""
