"""The metrics' port is open to each program of the node: slow ones keep no place of the 16."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request

from enforcer.reporting.metrics import MAX_SCRAPES, NodeCollector, Publisher


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def scrape(port: int) -> bytes:
    """As Prometheus does: again, until it is answered."""
    limit = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                return bytes(answer.read())
        except OSError:
            assert time.monotonic() < limit, "no scrape is answered any more"
            time.sleep(0.1)


def test_clients_that_send_a_byte_now_and_then_are_ended() -> None:
    port = free_port()
    publisher = Publisher(NodeCollector(lambda: None, False, time.time), port)
    stop = threading.Event()
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_SCRAPES)]

    def trickle() -> None:
        while not stop.wait(0.2):
            for sock in slow:
                with contextlib.suppress(OSError):
                    sock.send(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        assert b"qgpu_arbiter_up" in scrape(port)
    finally:
        stop.set()
        thread.join()
        for sock in slow:
            sock.close()
        publisher.close()
