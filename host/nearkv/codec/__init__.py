"""Numpy-only codecs of the scoring format, shared by host, driver and golden models."""
