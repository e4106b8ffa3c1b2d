"""The search protocol: what a searcher is asked for and what it gets."""
