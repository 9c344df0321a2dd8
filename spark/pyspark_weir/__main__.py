"""`weir-spark`, and `python -m pyspark_weir` where scripts are not on PATH.

Knows: where the command line is; that Ctrl-C may come while it is imported. Must never know: any job.
"""

from weir.cli.entry import imports


def main() -> None:
    """Run the job that the command line names."""
    with imports():
        from pyspark_weir.cli.main import jobs  # noqa: PLC0415 - Ctrl-C is quiet here
    jobs(prog_name="weir-spark")


if __name__ == "__main__":
    main()
