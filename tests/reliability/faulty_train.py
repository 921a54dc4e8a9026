"""`launch.train` whose process 1 fails at step 22 in the way that FAULT names."""

import os
import signal
import sys
import time
from pathlib import Path

from calibjax.training import loop
from launch import _main, train

STEP = 22
is_victim = "--process_id=1" in sys.argv
out = Path(next(a for a in sys.argv if a.startswith("--out=")).removeprefix("--out="))
fault = os.environ["FAULT"]
real_await, real_batches = loop._await_step, loop._batches
calls = []


def strike(*arguments):
    calls.append(1)
    if is_victim and len(calls) == STEP:
        (out / "struck").write_text(fault)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "sleep":
            time.sleep(3600)
        if fault == "raise":
            raise RuntimeError("a fault of this process alone")
    return real_await(*arguments)


def fewer(loader, start, stop):
    for number, batch in real_batches(loader, start, stop):
        if is_victim and fault == "short" and number == STEP:
            (out / "struck").write_text(fault)
            return
        yield number, batch


loop._await_step, loop._batches = strike, fewer

if __name__ == "__main__":
    _main.run(train.main)
