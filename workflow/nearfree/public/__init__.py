"""Measurements and values published by others, as events."""
