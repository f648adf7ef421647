"""What every room of the client uses and what knows none of them."""
