"""A ledger as a Workflow Run RO-Crate: write it, and verify every byte of it."""
