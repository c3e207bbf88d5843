"""Tests of nearfree.derive.score."""
