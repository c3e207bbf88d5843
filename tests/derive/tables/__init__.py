"""Tests of nearfree.derive.tables."""
