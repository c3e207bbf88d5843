"""C++ and CUDA in the form that rules are read in."""
