"""The workflow's rules in Python: scopes, receipts and targets, and the check of a cluster."""
