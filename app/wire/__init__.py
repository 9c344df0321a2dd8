"""What stands on the wire: bytes to commands, replies to bytes. Statuses and sockets are nobody's business
here.
"""
