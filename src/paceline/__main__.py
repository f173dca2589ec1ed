"""The `paceline` program, also `python -m paceline`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run one command. Return the exit code: 130 for Ctrl-C, also while commands are imported."""
    try:
        from paceline.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
