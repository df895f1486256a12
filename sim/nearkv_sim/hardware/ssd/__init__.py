"""An NVMe solid-state drive: queues, firmware, caches, page map, channels, dies (`controller.Ssd`)."""
