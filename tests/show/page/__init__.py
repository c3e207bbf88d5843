"""Tests of nearfree.show.page."""
