"""Tests of nearfree.sources.language."""
