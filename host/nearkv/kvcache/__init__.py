"""Where a stream's rows are: the hot pool on the host, the inclusive cold store behind the scorer."""
