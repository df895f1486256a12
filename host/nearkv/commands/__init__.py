"""Sub-commands of the host package."""
