"""The search protocol: what a searcher is asked and told."""
