"""Native PCIe: behind AMD's UltraScale+ integrated block, for boards without XRT."""
