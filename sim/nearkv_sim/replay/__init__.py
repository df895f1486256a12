"""Verilog of the scorer with recorded beats and a plain Verilog testbench that replays them."""
