"""CPU backend: the default everywhere."""
