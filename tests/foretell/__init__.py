"""Tests of nearfree.foretell."""
