"""The check after each test (tests/conftest.py): what is left is found, what is just ending is
waited for.
"""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from left_support import Open, children, descriptors, left_for_good


def now() -> Open:
    return descriptors(), children()


def test_what_stays_open_is_found() -> None:
    before = now()
    reader, writer = os.pipe()
    process = subprocess.Popen(["sleep", "60"])
    try:
        rest = left_for_good(before, now, patience_s=0)
    finally:
        os.close(reader)
        os.close(writer)
        process.kill()
        process.wait()
    assert sorted(line.split()[0] for line in rest) == ["descriptor", "descriptor", "process"]
    assert left_for_good(before, now) == []


def test_what_a_thread_is_about_to_give_back_is_not_left() -> None:
    before = now()
    reader, writer = os.pipe()
    process = subprocess.Popen(["sleep", "60"])
    looked = threading.Event()

    def end() -> None:
        looked.wait(30)
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)

    thread = threading.Thread(target=end)
    thread.start()

    def looking() -> Open:
        found = now()
        looked.set()
        return found

    assert left_for_good(before, looking, patience_s=30) == []
    thread.join()


def test_files_that_a_library_keeps_do_not_count() -> None:
    before = now()
    with Path("/usr/bin/env").open("rb"):
        assert left_for_good(before, now, patience_s=0) == []
