"""Tests of nearfree.sources.cpp."""
