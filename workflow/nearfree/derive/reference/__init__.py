"""What public curves of a kernel say beside its form: constants of its own, and residuals."""
