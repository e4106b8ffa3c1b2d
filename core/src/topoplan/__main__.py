"""``python -m topoplan`` is ``topoplan``; imports what is heavy only where Ctrl-C is heard already."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    try:
        from topoplan.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
