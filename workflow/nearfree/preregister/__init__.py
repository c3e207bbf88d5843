"""What is said of a model's boundary before it is measured, from its modules measured apart."""
