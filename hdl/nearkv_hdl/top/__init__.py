"""Kernels: what is put on a part, with the pins or buses of its surroundings."""
