"""Tests of nearfree.show.figures."""
