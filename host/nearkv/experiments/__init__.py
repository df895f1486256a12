"""Experiments: configuration, run, comparison of transports, results, plots and report."""
