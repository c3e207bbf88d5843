"""Tests of nearfree.derive.claims."""
