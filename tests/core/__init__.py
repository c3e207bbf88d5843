"""Tests of nearfree.core."""
