"""Formats, layouts and designs shared by RTL, golden models and host; standard library only."""
