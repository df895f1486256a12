"""The transport `pcie`: TLPs of cocotbext-pcie between a host, a card with the kernel's RTL and a drive."""
