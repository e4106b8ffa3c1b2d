"""One run of the tests is like the other: property-based tests draw the same examples every time.

``HYPOTHESIS_PROFILE=explore`` draws new ones.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
