"""Tests of nearfree.figures."""
