"""Run the command line as `python -m nearfree`."""

from nearfree.cli import main

if __name__ == "__main__":
    main()
