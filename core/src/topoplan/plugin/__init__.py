"""Plugins: the hooks, what each kind of component builds, and the host that loads them."""
