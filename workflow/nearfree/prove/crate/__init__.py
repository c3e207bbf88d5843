"""A ledger as a Workflow Run RO-Crate: written, and read back with every byte accounted for."""
