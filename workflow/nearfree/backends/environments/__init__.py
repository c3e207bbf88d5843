"""Backends' environments: their locks, what is installed, and the installation from a lock."""
