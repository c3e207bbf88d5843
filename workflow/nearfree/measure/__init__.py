"""How it is timed: protocols, sampling, and the take that keeps the samples."""
