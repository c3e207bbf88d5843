"""Checks of every number against its evidence: the audit, and crates for others."""
