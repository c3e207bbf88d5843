"""The append-only event log: what happened, once, and nothing else."""
