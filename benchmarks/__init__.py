"""Speeds of nearkv, measured as ratios within one run because machines differ and are shared.

One BLAS thread, CPU seconds: idle threads that spin would measure the neighbours instead.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before anything here imports numpy
