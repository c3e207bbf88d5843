"""Tests of nearfree.tables."""
