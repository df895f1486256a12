"""Stream components that every other layer is put together from, and the contract they keep."""
