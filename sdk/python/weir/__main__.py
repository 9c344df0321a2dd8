"""`python -m weir` is the command `weir`.

Knows: that Python puts the current folder on the path here, and not for `weir`. Must never know: any command.
"""

import sys

if not sys.flags.safe_path:
    # A user's `app.py` in the current folder is not the gateway.
    del sys.path[0]

from weir.cli.entry import main

if __name__ == "__main__":
    main()
