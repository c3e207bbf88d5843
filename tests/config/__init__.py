"""Tests of nearfree.config."""
