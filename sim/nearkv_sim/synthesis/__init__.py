"""Synthesis with Yosys: what the scorer of a design costs on its device, against budgets."""
