"""Tests of the forward of a config.json."""
