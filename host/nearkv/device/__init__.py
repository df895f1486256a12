"""The near-data device as the runtime sees it: transport, driver and cold store."""
