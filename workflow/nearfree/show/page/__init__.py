"""The report: every number with the way back to its events."""
