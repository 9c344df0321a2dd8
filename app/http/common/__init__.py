"""What every request and every answer has: paths, origins, codings, how an exchange begins and ends."""
