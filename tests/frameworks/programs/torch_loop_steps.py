"""Run as a program with PyTorch that works until the file `go` is in the user's home: tensors that
it keeps, and loops of different kinds. A loop writes a line each few rounds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch_steps import DEVICE, MIB, _model, _Numbers, _steps, keep, kept
from words import answer

ROUNDS = 10  # to a line of output
STREAMS = 3

_held: list[torch.Tensor] = []


def hold(size: int) -> dict[str, Any]:
    """Allocates so many MiB more on the card; their contents are not checked."""
    _held.append(torch.empty(size * MIB, dtype=torch.uint8, device=DEVICE))
    return {"held": size}


def _loop(work: Callable[[], bool]) -> dict[str, Any]:
    """Rounds until the file is there; whether each found its bytes as they were."""
    same = True
    for number in itertools.count():
        if (Path.home() / "go").exists():
            return {"rounds": number, "same": same}
        same = work() and same
        torch.cuda.synchronize()
        if number % ROUNDS == 0:
            print(json.dumps({"round": number}), flush=True)
    raise AssertionError


def streams() -> dict[str, Any]:
    """Training, while streams carry bytes from pinned memory to the card and back."""
    model, others = _model(), [torch.cuda.Stream() for _ in range(STREAMS)]
    sent = [torch.randint(0, 256, (MIB,), dtype=torch.uint8).pin_memory() for _ in others]
    got = [torch.empty_like(host).pin_memory() for host in sent]

    def work() -> bool:
        for stream, host, back in zip(others, sent, got, strict=True):
            with torch.cuda.stream(stream):
                back.copy_(host.to(DEVICE, non_blocking=True), non_blocking=True)
        _steps(model, 1)
        return all(map(torch.equal, sent, got))

    return _loop(work)


def graph() -> dict[str, Any]:
    """A captured step, replayed, with a copy in it."""
    model, data = _model(), torch.randn(64, 256, device=DEVICE)
    source = torch.randint(0, 256, (MIB,), dtype=torch.uint8)
    there, copied = source.to(DEVICE), torch.zeros(MIB, dtype=torch.uint8, device=DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(data)
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        model(data)
        copied.copy_(there)

    def work() -> bool:
        copied.zero_()
        captured.replay()
        return torch.equal(copied.cpu(), source)

    return _loop(work)


def loader() -> dict[str, Any]:
    """Batches of processes that were forked, which use no CUDA, through pinned memory."""
    batches = torch.utils.data.DataLoader(
        _Numbers(),
        8,
        num_workers=2,
        pin_memory=True,
        persistent_workers=True,
        multiprocessing_context="fork",
    )

    def work() -> bool:
        rows = [batch.to(DEVICE, non_blocking=True) for batch in batches]
        firsts = torch.cat([batch.cpu()[:, 0] for batch in rows])
        return torch.equal(firsts, torch.arange(64.0))

    return _loop(work)


def _borrow(given: Any, answered: Any) -> None:
    tensor = given.get()
    answered.put(tensor.numel())
    given.get()


def share() -> dict[str, Any]:
    """Training, while another process maps a tensor of this one."""
    context = torch.multiprocessing.get_context("spawn")
    given, answered = context.Queue(), context.Queue()
    context.Process(target=_borrow, args=(given, answered), daemon=True).start()
    tensor, model = torch.ones(64 * MIB, dtype=torch.uint8, device=DEVICE), _model()
    given.put(tensor)
    answered.get(timeout=120)

    def work() -> bool:
        _steps(model, 1)
        return True

    return _loop(work)


if __name__ == "__main__":
    answer(hold, keep, kept, streams, graph, loader, share)
