"""How checkpoints store their matrices: quantisation methods, formats and bytes."""
