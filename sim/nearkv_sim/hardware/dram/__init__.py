"""DRAM: timing tables as data, a bank state machine, an independent trace checker, energy."""
