"""Translation of C++ and CUDA into the normal form of rules."""
