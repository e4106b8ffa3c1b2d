"""``python -m topoplan`` is ``topoplan``."""

from topoplan.cli import main

if __name__ == "__main__":
    main()
