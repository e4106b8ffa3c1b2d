"""How kernels are compiled."""
