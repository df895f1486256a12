"""Boards and cards: parts, pins, build scripts. Vivado scripts are generated and have never been run."""
