"""Event models of the hardware that simulated transports run on."""
