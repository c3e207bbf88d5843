"""The append-only event log: typed events in takes, their seals, ledgers and verification."""
