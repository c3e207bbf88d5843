"""Tests of nearfree.sources."""
