"""Tests of nearfree.derive.truth."""
