"""The rules of each package: the files that hold them, and how they are read."""
