"""Tests of nearfree.environments."""
