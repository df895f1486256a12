"""Files by which vendor tools take the kernel up: kernel.xml, packaging and link scripts, FuseSoC core."""
