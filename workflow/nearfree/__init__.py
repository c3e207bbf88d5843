"""How many decode positions are near-free: measured, predicted, and traced to its evidence."""

__version__ = "0.1.0"
