"""The prefetch pipeline: what a decode step asks of a machine, when it happens, and how it is balanced."""
