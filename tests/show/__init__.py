"""Tests of nearfree.show."""
