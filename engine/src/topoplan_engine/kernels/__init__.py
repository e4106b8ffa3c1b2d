"""How kernels are compiled.

Numba imports coverage wherever that is installed, a seventh of its own import, for ``NUMBA_JIT_COVERAGE`` alone.  Here
it is imported without, unless that is set, or the process has imported either of them before.
"""

import os
import sys

if not {"coverage", "numba"} & sys.modules.keys() and "NUMBA_JIT_COVERAGE" not in os.environ:
    sys.modules["coverage"] = None  # type: ignore[assignment]  # an import then fails as if it were not installed
    try:
        import numba as numba
    finally:
        del sys.modules["coverage"]
