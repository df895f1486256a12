"""Arithmetic components."""
