"""Old and new clients beside old and new gateways."""
