"""The command line: `weir`."""
