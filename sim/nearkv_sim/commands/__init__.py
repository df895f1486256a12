"""Sub-commands of the simulation package."""
