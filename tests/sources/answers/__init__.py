"""Tests of nearfree.sources.answers."""
