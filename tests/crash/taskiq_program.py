"""What the workers of `test_taskiq.py` run: tasks that note themselves, in a file that outlives them."""

import os
import time
from pathlib import Path

from weir.taskiq import WeirBroker

broker = WeirBroker(os.environ["WEIR_URL"], ack_timeout_ms=1_000, credit=int(os.environ["TASKS_AT_ONCE"]))


@broker.task(task_name="note")
def note(number: int) -> None:
    """Work for a moment, so that some are being worked on whenever a worker is killed."""
    time.sleep(0.005)
    with Path(os.environ["TASKS_DONE"]).open("a", encoding="ascii") as done:
        done.write(f"{number}\n")
