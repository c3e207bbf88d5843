"""What each package keeps where: which files are needed, how its rules are cut out of them."""
