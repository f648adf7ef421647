"""The other nodes as this one sees them: who lives, who owns what, how fast history is fetched from them."""
