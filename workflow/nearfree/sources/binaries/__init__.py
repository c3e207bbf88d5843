"""Release binaries: the kernels that they hold, and whether the rules choose those kernels."""
