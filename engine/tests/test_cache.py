"""The bounded cache: it keeps what was used last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan_engine.cache import LruCache


def test_unknown_keys_have_no_value():
    cache = LruCache(4)
    assert cache.find("a") is None
    with pytest.raises(KeyError):
        cache["a"]


@given(st.integers(1, 12), st.lists(st.integers(0, 20), max_size=80))
def test_the_half_that_was_used_last_is_kept_and_no_more_than_the_size(size, keys):
    cache, used = LruCache(size), []
    for key in keys:
        value = cache.find(key)
        assert value in (None, -key)
        if key in used[-max(1, size // 2) :]:
            assert value == -key
        if value is None:
            assert cache.put(key, -key) == -key
        used = [*(other for other in used if other != key), key]
        assert len(cache) + len(cache._old) <= max(2, size)
