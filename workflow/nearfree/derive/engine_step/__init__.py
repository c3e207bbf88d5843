"""What an engine's step takes besides its modules."""
