"""`python -m pyspark_weir` is `weir pipeline`, for machines that have the pipeline without the gateway.

Knows: where the command line is. Must never know: anything else.
"""

from pyspark_weir.cli.main import main

if __name__ == "__main__":
    main()
