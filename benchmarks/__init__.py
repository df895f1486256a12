"""Speeds of the stack, as figures and ratios measured in one run: `python -m benchmarks [NAME...]`."""
