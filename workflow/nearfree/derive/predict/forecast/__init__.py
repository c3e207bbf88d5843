"""T(N) and N_max of a whole model's forward, composed from its modules."""
