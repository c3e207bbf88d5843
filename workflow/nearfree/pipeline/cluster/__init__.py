"""A SLURM cluster: whether it accepts jobs, and the state of its nodes."""
