"""The form that rules are read in, and the two ways of reading them."""
