"""Tests of nearfree.claims."""
