"""Everything that imitates hardware."""
