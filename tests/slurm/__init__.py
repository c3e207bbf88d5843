"""A real SLURM on one machine: nodes with fake GPUs, started in seconds and stopped for good."""
