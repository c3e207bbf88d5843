"""Tests of nearfree.public."""
