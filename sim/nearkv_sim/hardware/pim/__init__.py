"""PIM: units beside banks, bank groups or in the buffer die, driven by commands on the DRAM's channels."""
