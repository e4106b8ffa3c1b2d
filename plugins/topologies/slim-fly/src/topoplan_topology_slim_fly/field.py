"""Finite fields of p^m elements, as tables.

An element is a polynomial over the integers modulo p: its coefficients are the digits of a number to base p.

A primitive polynomial is found by trying: one whose root has all other elements but zero as powers.
"""

from __future__ import annotations

import itertools

import attrs
import numpy as np

__all__ = ["Field", "is_prime_power"]


def _base(q: int) -> tuple[int, int] | None:
    """Return p and m of q = p^m; None where q is no power of a prime."""
    p = next(factor for factor in range(2, q + 1) if q % factor == 0)
    m = 0
    while q % p == 0:
        q, m = q // p, m + 1
    return (p, m) if q == 1 else None


def is_prime_power(q: int) -> bool:
    """Say whether there is a field of ``q`` elements.

    >>> [q for q in range(2, 14) if is_prime_power(q)]
    [2, 3, 4, 5, 7, 8, 9, 11, 13]
    """
    return _base(q) is not None


@attrs.frozen(eq=False)
class Field:
    """Tables of a field.

    Attributes:
        power: (q - 1,) powers of a primitive element, from that of 0, which is 1.
        sum, difference, product: (q, q) of two elements.

    >>> Field.of(5).power.tolist()
    [1, 2, 4, 3]
    """

    power: np.ndarray
    sum: np.ndarray
    difference: np.ndarray
    product: np.ndarray

    @classmethod
    def of(cls, q: int) -> Field:
        """Return the field of ``q`` elements, a power of a prime."""
        base = _base(q)
        if base is None:
            raise ValueError(f"{q} is no power of a prime")
        p, m = base
        weights = p ** np.arange(m)
        digits = np.arange(q)[:, None] // weights % p
        power = next(filter(None, (_powers(p, tail) for tail in itertools.product(range(p), repeat=m))))
        elements = np.array([sum(digit * p**i for i, digit in enumerate(row)) for row in power])
        logarithm = np.zeros(q, dtype=np.int64)
        logarithm[elements] = np.arange(q - 1)
        product = elements[(logarithm[:, None] + logarithm[None]) % (q - 1)]
        product[0], product[:, 0] = 0, 0
        total = (digits[:, None] + digits[None]) % p @ weights
        difference = (digits[:, None] - digits[None]) % p @ weights
        return cls(elements, total, difference, product)


def _powers(p: int, tail: tuple[int, ...]) -> list[tuple[int, ...]] | None:
    """Return the powers of the root of x^m = tail, lowest digits first; None unless they are all but zero."""
    if tail[0] == 0:  # no power of the root is 1
        return None
    one_item = (1,) + (0,) * (len(tail) - 1)
    rows, row = [one_item], one_item
    for _ in range(p ** len(tail) - 2):
        row = tuple((low + row[-1] * factor) % p for low, factor in zip((0, *row[:-1]), tail, strict=True))
        if row == one_item:
            return None
        rows.append(row)
    return rows
