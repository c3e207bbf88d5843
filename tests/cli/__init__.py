"""Tests of nearfree.cli."""
