"""What a network costs: parts of a fabric, times prices from a file.

Data flow: `bill.bill` counts the parts that a fabric is built of, from its links and from what it says that they pass
(`Fabric.switching`); `book.Prices` holds prices by part and bandwidth, read from a TOML file in which
every line names its source; `bill.cost` multiplies, and `bill.affordable` turns the question round: how fast may
a network be so that it costs no more than a given sum.  Nothing here knows a topology by name.
"""

from __future__ import annotations

from topoplan_studies.prices.bill import UNSTATED, Item, affordable, bill, cost, largest_factor, scaled
from topoplan_studies.prices.book import Basis, Prices, default_prices, read_prices

__all__ = [
    "UNSTATED",
    "Basis",
    "Item",
    "Prices",
    "affordable",
    "bill",
    "cost",
    "default_prices",
    "largest_factor",
    "read_prices",
    "scaled",
]
