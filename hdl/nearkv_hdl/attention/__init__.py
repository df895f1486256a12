"""Attention components: the QKᵀ scorer and what follows it."""
