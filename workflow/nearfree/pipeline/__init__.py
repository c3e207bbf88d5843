"""What the workflow's rules ask: scopes, receipts, targets, and the cluster's jobs."""
