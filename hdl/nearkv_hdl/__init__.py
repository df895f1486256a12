"""Amaranth components and their specification."""
