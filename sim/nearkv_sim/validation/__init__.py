"""Every hardware model held against figures that somebody measured or published."""
