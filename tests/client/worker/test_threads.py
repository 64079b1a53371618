"""Functions in threads that are interrupted, and what that leaves behind in the process: nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import PATIENCE_S

PROGRAM = """
import asyncio, sys, threading
from forebay.client.worker.threads import Threads

async def main():
    threads = Threads(1)
    begun, go_on = threading.Event(), threading.Event()
    def work():
        {work}
    threaded = threads.run(work)
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    threaded.interrupt()
    go_on.set()
    await threaded.until_over()
    print(type(threaded.error).__name__, await threads.run(lambda: "next").future)
    threads.close()

asyncio.run(main())
seen = []
sys.setprofile(lambda frame, event, argument: seen.append(event))
(lambda: None)()
sys.setprofile(None)
print("profiled", seen.count("return") > 0)
"""


@pytest.mark.parametrize(
    ("work", "error"),
    [
        ("begun.set()\n        while True: pass", "TimeoutError"),
        ("begun.set()\n        go_on.wait()", "TimeoutError"),
        (
            "try:\n            begun.set()\n            while True: pass\n        except BaseException: pass",
            "NoneType",
        ),
    ],
    ids=["it comes at once", "it comes when a wait is over", "it is held on to"],
)
def test_a_process_can_be_profiled_after_a_thread_of_it_was_interrupted(work: str, error: str) -> None:
    program = PROGRAM.format(work=work)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{error} next", "profiled True"]


LOGGING = """
import asyncio, logging, sys, threading
from forebay.client.worker.threads import Threads

handler = logging.Handler()
handler.emit = lambda record: None
logger = logging.getLogger("theirs")
logger.addHandler(handler)
logger.propagate = False

async def main():
    threads = Threads(1)
    begun, logged = threading.Event(), threading.Event()
    def work():
        begun.set()
        logger.warning("something")
        logged.set()
        while True: pass
    handler.acquire()
    threaded = threads.run(work)
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    while "acquire" not in str(sys._current_frames()[threaded._ident]):
        await asyncio.sleep(0.001)
    threaded.interrupt()
    handler.release()
    await threaded.until_over()
    is_free = handler.lock.acquire(blocking=False)
    print(type(threaded.error).__name__, "logged", logged.is_set(), "free", is_free)
    threads.close()

asyncio.run(main())
"""


def test_a_thread_that_is_interrupted_while_it_logs_lets_go_of_the_lock_first() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "TimeoutError logged True free True\n"


CHATTY = """
import asyncio, logging, sys, threading, types
from forebay.client.worker.threads import Threads

logging.basicConfig(filename=sys.argv[1], level=logging.INFO)
theirs = types.ModuleType("logging_jobs")
exec("def spin(begun):\\n    begun.set()\\n    while True: pass", vars(theirs))

def log(begun):
    begun.set()
    while True:
        logging.info("again")

async def main():
    threads = Threads(1)
    for work in (log, theirs.spin):
        for _ in range(20):
            begun = threading.Event()
            threaded = threads.run(lambda: work(begun))
            await asyncio.get_running_loop().run_in_executor(None, begun.wait)
            threaded.interrupt()
            await threaded.until_over()
    logging.info("nobody holds the lock")
    threads.close()

asyncio.run(main())
print("done")
"""


def test_a_thread_that_does_nothing_but_log_is_interrupted(tmp_path: Path) -> None:
    given = [sys.executable, "-c", CHATTY, str(tmp_path / "log")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("done\n", "")
