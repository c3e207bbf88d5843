"""What follows from models, datasheets and rules alone."""
