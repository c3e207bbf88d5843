"""Time of an engine's step outside of its modules."""
