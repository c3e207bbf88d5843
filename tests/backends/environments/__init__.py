"""Tests of nearfree.backends.environments."""
