"""A model of the Vivado commands that the packaging script uses, in a real Tcl interpreter."""

import shlex

import pytest

# Properties of Vivado's objects, as far as a kernel's packaging sets them (UG835, UG1118).
PROPERTIES = {
    "core": {"name", "version", "display_name", "sdx_kernel", "sdx_kernel_type", "vitis_drc"},
    "block": {"range", "width"},
    "register": {"address_offset", "size", "access", "description"},
    "field": {"bit_offset", "bit_width", "description"},
    "parameter": {"value"},
    "file": {"USED_IN"},
    "fileset": {"top"},
}


class Refused(Exception):
    """What Vivado would end the script with."""


class Vivado:
    """Objects by handle with their properties; commands in the order they came.

    The packager finds `interfaces` in the ports of the top module: {name: kind}.
    """

    def __init__(self, tkinter, interfaces):
        self.tcl = tkinter.Tcl()
        self.tcl_error = tkinter.TclError
        self.interfaces = interfaces
        self.objects = {}
        self.calls = []
        self.associations = []
        self.error = None
        self.tcl.eval("namespace eval ipx {}")
        for name in dir(self):
            kind, _, command = name.partition("_")
            if kind in ("ipx", "cmd"):
                tcl_name = f"::ipx::{command}" if kind == "ipx" else f"::{command}"
                self.tcl.createcommand(tcl_name, self.recorded(tcl_name, getattr(self, name)))

    def recorded(self, name, function):
        def call(*words):
            self.calls.append((name.removeprefix("::"), words))
            try:
                return function(*words) or ""
            except Exception as error:
                self.error = error
                raise

        return call

    def source(self, script, folder):
        self.tcl.eval(f"cd {{{folder}}}")
        try:
            self.tcl.eval(script)
        except self.tcl_error as error:
            raise self.error or Refused(str(error)) from None

    def new(self, handle):
        if handle in self.objects:
            raise Refused(f"{handle} exists")
        self.objects[handle] = {}
        return handle

    def known(self, handle, kind):
        if handle not in self.objects or handle.partition(":")[0] != kind:
            raise Refused(f"{handle!r} is no {kind}")
        return handle

    def options(self, words, flags=(), allowed=()):
        """Options by name, then what is left."""
        values, rest, words = {}, [], list(words)
        while words:
            word = words.pop(0)
            if word in flags:
                values[word] = True
            elif word in allowed:
                values[word] = words.pop(0)
            elif word.startswith("-"):
                raise Refused(f"unknown option {word}")
            else:
                rest.append(word)
        return values, rest

    def cmd_create_project(self, *words):
        values, rest = self.options(words, ["-force"], ["-part"])
        self.part = values["-part"]
        self.new("fileset:sources_1")
        assert len(rest) == 2

    def cmd_add_files(self, *words):
        _, files = self.options(words, ["-norecurse"], ["-fileset"])
        for file in files:
            self.new(f"file:{file}")

    def cmd_get_files(self, file):
        return self.known(f"file:{file}", "file")

    def cmd_current_fileset(self):
        return self.known("fileset:sources_1", "fileset")

    def cmd_update_compile_order(self, *words):
        self.options(words, [], ["-fileset"])
        assert "top" in self.objects["fileset:sources_1"]

    def cmd_set_property(self, name, value, handle):
        kind = handle.partition(":")[0]
        if name not in PROPERTIES[self.known(handle, kind).partition(":")[0]]:
            raise Refused(f"{kind} has no property {name}")
        self.objects[handle][name] = value

    def cmd_close_project(self, *words):
        assert words == ("-delete",)

    def cmd_package_xo(self, *words):
        values, rest = self.options(
            words, ["-force"], ["-xo_path", "-kernel_name", "-ip_directory", "-kernel_xml"]
        )
        assert not rest
        assert self.calls[-2][0] == "close_project"
        self.xo = values

    def ipx_package_project(self, *words):
        values, _ = self.options(
            words,
            ["-import_files"],
            ["-root_dir", "-vendor", "-library", "-taxonomy", "-set_current"],
        )
        self.packaged = values
        self.new("core:current")
        self.new("map:s_axi_control")
        self.new("block:reg0")
        for name in self.interfaces:
            self.new(f"interface:{name}")

    def ipx_current_core(self):
        return self.known("core:current", "core")

    def ipx_associate_bus_interfaces(self, *words):
        values, rest = self.options(words, [], ["-busif", "-clock", "-reset"])
        assert rest == ["core:current"]
        for option, kind in (("-busif", "aximm"), ("-clock", "clock"), ("-reset", "reset")):
            if option in values and self.interfaces.get(values[option]) != kind:
                raise Refused(f"{values[option]} is no {kind} interface")
        self.associations.append(values)

    def ipx_get_bus_interfaces(self, name, option, core):
        assert (option, core) == ("-of_objects", "core:current")
        return self.known(f"interface:{name}", "interface")

    def ipx_add_bus_parameter(self, name, interface):
        return self.new(f"parameter:{name} of {self.known(interface, 'interface')}")

    def ipx_get_memory_maps(self, name, option, core):
        assert (option, core) == ("-of_objects", "core:current")
        return self.known(f"map:{name}", "map")

    def ipx_get_address_blocks(self, name, option, memory_map):
        assert option == "-of_objects"
        self.known(memory_map, "map")
        return self.known(f"block:{name}", "block")

    def ipx_add_register(self, name, block):
        self.known(block, "block")
        return self.new(f"register:{name}")

    def ipx_get_registers(self, name, option, block):
        assert option == "-of_objects"
        self.known(block, "block")
        return self.known(f"register:{name}", "register")

    def ipx_add_field(self, name, register):
        return self.new(f"field:{name} of {self.known(register, 'register')}")

    def ipx_add_register_parameter(self, name, register):
        return self.new(f"parameter:{name} of {self.known(register, 'register')}")

    def _finish(self, core):
        assert core == "core:current"

    ipx_create_xgui_files = ipx_update_checksums = ipx_save_core = _finish

    def ipx_check_integrity(self, *words):
        assert shlex.join(words) == "-kernel -xrt core:current"


INTERFACES = {
    "s_axi_control": "aximm",
    "m_axi_gmem": "aximm",
    "ap_clk": "clock",
    "ap_rst_n": "reset",
    "interrupt": "interrupt",
}


@pytest.fixture
def tkinter():
    # Python's only Tcl interpreter; distributions may leave it out.
    return pytest.importorskip("tkinter")


@pytest.fixture
def interfaces(design):
    return INTERFACES | {f"m_axi_gmem{i}": "aximm" for i in range(1, design.key_masters)}


@pytest.fixture
def vivado(tkinter, interfaces):
    return Vivado(tkinter, interfaces)


@pytest.fixture
def bare_vivado(tkinter, interfaces):
    """One that infers no reset."""
    return Vivado(tkinter, {name: kind for name, kind in interfaces.items() if kind != "reset"})


@pytest.fixture
def refused():
    return Refused
