"""What a whole model's forward does with N, composed of what is known of its modules."""
