"""The metrics endpoint, read the way Prometheus reads it."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nearkv.integrations.prometheus import MetricsEndpoint, RunSample

STEP = RunSample(
    hits=30,
    misses=10,
    moved_bytes={"smartssd_link": 4096},
    promoted_tokens=3,
    demoted_tokens=2,
    time_ps=2_000_000_000,
    failures={"timeout": 1},
    tier_occupancy={"host_memory": 0.25},
    gpu_load=0.5,
    ssd_wear={"nand": 0.001},
    fpga_celsius={"fpga": 61.5},
)


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_steps_and_shows_how_things_stand():
    with MetricsEndpoint(0) as endpoint:
        for _ in range(2):
            endpoint.observe(STEP)
        found = scrape(endpoint.port)
    assert found[("nearkv_steps_total",)] == 2
    assert found[("nearkv_hits_total",)] == 60
    assert found[("nearkv_misses_total",)] == 20
    assert found[("nearkv_moved_bytes_total", "smartssd_link")] == 8192
    assert found[("nearkv_moved_tokens_total", "promoted")] == 6
    assert found[("nearkv_moved_tokens_total", "demoted")] == 4
    assert found[("nearkv_failures_total", "timeout")] == 2
    assert found[("nearkv_simulated_seconds_total",)] == pytest.approx(0.004)
    assert found[("nearkv_tier_occupancy_ratio", "host_memory")] == 0.25
    assert found[("nearkv_gpu_load_ratio",)] == 0.5
    assert found[("nearkv_ssd_wear_ratio", "nand")] == 0.001
    assert found[("nearkv_fpga_temperature_celsius", "fpga")] == 61.5


def test_what_is_not_known_is_not_there():
    with MetricsEndpoint(0) as endpoint:
        endpoint.observe(RunSample(1, 0, {}, 0, 0, 1))
        names = {name for name, *_ in scrape(endpoint.port)}
    assert "nearkv_gpu_load_ratio" not in names
    assert "nearkv_fpga_temperature_celsius" not in names


def test_listens_on_the_loopback_address_alone():
    with MetricsEndpoint(0) as endpoint:
        addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        for address in addresses - {"127.0.0.1"}:
            if not address.startswith("127."):
                with pytest.raises(OSError, match="refused"):
                    socket.create_connection((address, endpoint.port), timeout=5)
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=5) as connection:
            assert connection.getpeername()[0] == "127.0.0.1"


def test_two_runs_beside_each_other_and_closing_twice():
    first, second = MetricsEndpoint(0), MetricsEndpoint(0)
    first.observe(STEP)
    assert scrape(second.port)[("nearkv_steps_total",)] == 0
    for endpoint in (first, second, second):
        endpoint.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", first.port), timeout=5)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be(port):
    with pytest.raises(ValueError, match=f"metrics port is {port}; allowed: 0 to 65535"):
        MetricsEndpoint(port)


def test_a_port_that_is_taken():
    with MetricsEndpoint(0) as endpoint, pytest.raises(OSError, match="in use"):
        MetricsEndpoint(endpoint.port)
