"""``python -m topoplan`` is ``topoplan``; imports what is heavy only where Ctrl-C is heard already."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]

#: Objects after which Python looks for garbage: imports make many and no garbage, and looking after 700 costs a tenth.
_COLLECT = 300_000


def main() -> None:
    """Run the command line and exit."""
    gc.set_threshold(_COLLECT)
    try:
        from topoplan.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # else Python looks through all that was imported, twice, before it ends


if __name__ == "__main__":
    main()
