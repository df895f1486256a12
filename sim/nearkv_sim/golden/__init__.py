"""Bit-exact whole-array numpy models, one per RTL component."""
