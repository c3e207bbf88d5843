"""The files of config/: read, checked against each other, and turned into plans."""
