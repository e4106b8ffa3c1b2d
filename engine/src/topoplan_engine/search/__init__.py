"""Pricing candidates, driving searchers, and making a plan of what they find."""
