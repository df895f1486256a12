"""Machines that ship."""

from __future__ import annotations

import pytest

from nearkv_sim.hardware.machine import ModelMachine, open_machine


@pytest.fixture(scope="session")
def pam() -> ModelMachine:
    return open_machine("pam")


@pytest.fixture(scope="session")
def dgx() -> ModelMachine:
    return open_machine("dgx_h100")
