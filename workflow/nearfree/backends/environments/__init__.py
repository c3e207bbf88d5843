"""Backends' environments: what a lock names, what is installed, and making the one of the other."""
