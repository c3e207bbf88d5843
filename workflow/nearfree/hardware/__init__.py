"""Platforms: datasheet facts, and what a machine shows of itself."""
