"""Readers and writers of attention traces, and the capture that makes one from a model and a text."""
