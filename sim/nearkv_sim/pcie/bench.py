"""The simulator's side of the transport: a cocotb bench that performs requests while there is a transport."""

from __future__ import annotations

import os
import socket
from typing import Any

import cocotb

from nearkv_sim.benches.harness import parameters
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.pcie.channel import SOCKET_NAME, Channel
from nearkv_sim.pcie.commands import start_commands


@cocotb.test()
async def serve(dut: Any) -> None:
    """Perform requests; simulated time stands still while none is under way."""
    chosen = parameters()
    commands = await start_commands(dut, PcieLinkConfig(**chosen["link"]), chosen["kernel"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.connect(SOCKET_NAME)  # in the folder the simulator runs in
        channel = Channel(connected)
        channel.send(os.getpid())
        while True:
            try:
                name, arguments = channel.receive()
            except EOFError:
                return
            channel.send(await commands.perform(name, arguments))
