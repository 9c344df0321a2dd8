"""Below all protocols: TLS, descriptors of connections, systemd."""
