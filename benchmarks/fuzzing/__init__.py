"""Inputs that nobody writes, for everything that reads: `mutators` make them, `readers` take them, `watch` counts."""
