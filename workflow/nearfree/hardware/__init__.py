"""Platforms: datasheet facts, and probes of this machine."""
