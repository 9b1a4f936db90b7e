"""Calls of an idempotent function with AWS Lambda Powertools, on the Redis whose URL is the argument.

Each line of standard input is one turn: `first` or `replay`, the number of threads, and its length in milliseconds. The
answer is a line with the nanoseconds that the turn took, and its number of calls.
"""

import itertools
import sys
import threading
import time

from aws_lambda_powertools.utilities.idempotency import (
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.persistence.cache import (
    CachePersistenceLayer,
)

# As many as the other contestants have: concurrent replays of one key may share work.
COMPLETED = 1000


class Context:
    """What the library reads of the context of a Lambda function."""

    def get_remaining_time_in_millis(self):
        return 30_000


config = IdempotencyConfig(expires_after_seconds=24 * 3600)
config.register_lambda_context(Context())
store = CachePersistenceLayer(url=sys.argv[1], ssl=False)


@idempotent_function(data_keyword_argument="key", config=config, persistence_store=store)
def call(key):
    return len(key)


def turn(kind, threads, seconds):
    """Makes calls until the time is over. Returns their number."""
    counts = [0] * threads
    failures = []
    began = time.monotonic()

    def work(thread):
        try:
            while True:
                number = next(numbers)
                key = f"py-{number}" if kind == "first" else f"py-done-{number % COMPLETED}"
                assert call(key=key) == len(key)
                counts[thread] += 1
                if time.monotonic() - began > seconds:
                    return
        except Exception as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - began, sum(counts)


numbers = itertools.count()
for number in range(COMPLETED):
    call(key=f"py-done-{number}")
print("ready", flush=True)
for line in sys.stdin:
    kind, threads, milliseconds = line.split()
    took, calls = turn(kind, int(threads), int(milliseconds) / 1000)
    print(int(took * 1e9), calls, flush=True)
