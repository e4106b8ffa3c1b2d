"""Paths, rings and links of a fabric, as columns that simulators read."""
