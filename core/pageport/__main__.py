"""The ``pageport`` command. ``--version`` answers before anything is imported."""

import sys


def main() -> None:
    """Run the command line; errors of ours end it with one sentence and status 1."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from pageport import __version__

        print(f"pageport {__version__}")
        return
    from pageport.cli.app import run

    run()


if __name__ == "__main__":
    main()
