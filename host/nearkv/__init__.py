"""The host runtime."""
