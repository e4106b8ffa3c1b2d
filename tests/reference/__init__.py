"""Figures of other programs that tests and benchmarks compare with: tables, what reads them, what wrote them."""
