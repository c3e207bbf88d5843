"""Tests of nearfree.show.text."""
