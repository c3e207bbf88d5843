"""What each rank of a deployment runs, holds and sends."""
