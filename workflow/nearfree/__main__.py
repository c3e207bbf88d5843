"""Run the command line, as `python -m nearfree` or as the installed script."""

from nearfree.stopping import stop_at_once


def main() -> None:
    """Run the command of the process's arguments; a stop by hand is one line from here on."""
    stop_at_once()
    from nearfree.cli import main as run

    run()


if __name__ == "__main__":
    main()
