"""cocotb benches, and the names through which `nearkv_sim.cosim.runner` and a bench talk to each other."""

PARAMETERS_VARIABLE = "NEARKV_BENCH_PARAMETERS"  # environment variable with a JSON object, into the bench
REPORT_NAME = "report.json"  # file in the bench's working folder, out of it
