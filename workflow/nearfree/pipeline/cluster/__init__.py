"""A SLURM cluster: whether it is there, and what its nodes see."""
