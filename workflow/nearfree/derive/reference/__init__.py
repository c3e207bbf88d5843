"""Groups: a kernel's own constants and residuals from its public curves, on top of its form."""
