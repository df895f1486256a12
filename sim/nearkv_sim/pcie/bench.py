"""The simulator's side of the transport: a cocotb bench that performs requests while there is a transport."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import cocotb

from nearkv.device.errors import DeviceError
from nearkv_sim.benches.harness import parameters
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.pcie.channel import SOCKET_NAME, Channel
from nearkv_sim.pcie.commands import Commands
from nearkv_sim.pcie.topology import Topology


@cocotb.test()
async def serve(dut: Any) -> None:
    """Perform requests; simulated time stands still while none is under way."""
    for name in ("cocotb.pcie", f"cocotb.{dut._name}"):
        logging.getLogger(name).setLevel(logging.ERROR)  # a line per TLP and burst takes longer than both
    chosen = parameters()
    topology = Topology(
        dut, PcieLinkConfig(**chosen["link"]), clock_ps=chosen["clock_ps"], bus_bytes=chosen["bus_bytes"]
    )
    await topology.start()
    commands = Commands(topology)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.connect(SOCKET_NAME)  # in the folder the simulator runs in
        channel = Channel(connected)
        channel.send(os.getpid())
        while True:
            try:
                name, arguments = channel.receive()
            except EOFError:
                return
            failure, result = None, None
            try:
                result = await getattr(commands, name)(*arguments)
            except (DeviceError, ValueError) as error:
                failure = type(error).__name__, str(error)
            channel.send((failure, result, commands.state))
