"""Tests of nearfree.derive.granularity."""
