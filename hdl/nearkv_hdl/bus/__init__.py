"""The kernel's side of the bus: registers behind AXI4-Lite, AXI4 masters with checked windows, CRC32C."""
