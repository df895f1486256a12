"""Where rows are: `TieredKVCache` over any number of tiers; the two-tier stream of replayed traces."""
