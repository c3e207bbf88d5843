"""Tests of nearfree.derive."""
