"""Tests of nearfree.sources.fetching."""
