"""What every request passes before a route sees it, outermost first: envelope, origins, names, phase."""
