"""`python -m pyspark_weir` is `weir-spark`, where scripts are not on PATH.

Knows: where the command line is. Must never know: anything else.
"""

from pyspark_weir.cli.main import main

if __name__ == "__main__":
    main()
