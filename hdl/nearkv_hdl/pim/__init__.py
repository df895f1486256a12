"""Processing in memory: processing units, reduction units and the network that joins them."""
