"""Tests of nearfree.sources.backends."""
