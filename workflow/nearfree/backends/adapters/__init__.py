"""One adapter a module and backend, all with the same interface."""
