"""Every figure of the two articles this project starts from, with what we measure instead."""
