"""Tests of nearfree.backends."""
