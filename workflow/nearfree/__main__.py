"""Run the command line, as `python -m nearfree` or as the installed script."""

from nearfree.stopping import stop_at_once


def main() -> None:
    """Run the command in the process's arguments; from here on Ctrl-C prints one line."""
    stop_at_once()
    from nearfree.cli import main as run

    run()


if __name__ == "__main__":
    main()
