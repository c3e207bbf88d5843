"""Tests of nearfree.hub."""
