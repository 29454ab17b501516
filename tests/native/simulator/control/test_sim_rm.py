"""The simulated control device: clients, objects, commands, and what is refused."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from rm_support import clients, log_of, simulator
from sim_tools import run

from simulator.sim import Simulator, control_device

pytestmark = pytest.mark.native


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    with simulator(tmp_path) as made:
        yield made


def in_client(sim: Simulator, code: str, **env: str) -> str:
    head = "import errno, struct, sim_rm\nfrom sim_rm import *\n"
    head += "g = Cuda(init=False); g.call('cuInit', 0); r = Rm(); C = r.root()\n"
    return run(sim, head + textwrap.dedent(code), **env)


def test_the_file_is_the_announced_one(sim: Simulator) -> None:
    out = run(
        sim,
        "Cuda(); import sim_rm\nprint([(lambda s: (s.st_dev, s.st_ino))(os.fstat(f)) for f in "
        "sim_rm.files()])",
    )
    assert out.strip() == str([sim.control_device()])
    assert control_device(sim.config.directory) == sim.control_device()


def test_the_file_is_nowhere_to_be_found(sim: Simulator) -> None:
    """No mount, no name: nothing is left behind, nobody finds it by looking."""
    mounts = (
        Path("/proc/self/mountinfo").read_text()
        + Path(f"/proc/{sim.process.pid}/mountinfo").read_text()
    )
    device = sim.control_device()
    assert device is not None
    assert f"{os.major(device[0])}:{os.minor(device[0])} " not in mounts


def test_objects_and_their_handles(sim: Simulator) -> None:
    in_client(
        sim,
        """
        assert C >> 20 == 0xc1d and r.info(C, C, 2) == ROOT and r.info(C, C, 1) == 0
        # The driver alone chooses those.
        assert r.alloc(0, 0, ROOT, handle=0xc1d00055).status == BAD_CLIENT
        dev = r.make(C, C, DEVICE, 0x5c000001, device_params())
        assert dev == 0x5c000001
        chosen = r.make(C, dev, SUBDEVICE)
        assert chosen and r.info(C, chosen, 1) == dev and r.info(C, chosen, 2) == SUBDEVICE
        assert r.alloc(C, dev, SUBDEVICE, dev).status == DUPLICATE_NAME
        assert r.alloc(C, 0xdead, SUBDEVICE).status == BAD_PARENT
        assert r.alloc(C, C, SUBDEVICE).status == BAD_PARENT
        assert r.alloc(C, C, GROUP, 0, group_params()).status == BAD_PARENT
        assert r.alloc(C, dev, CHANNEL).status == BAD_PARENT
        assert r.alloc(C, C, 0x83de).status == BAD_CLASS
        # There is one card.
        assert r.alloc(C, C, DEVICE, 0, device_params(1)).status == BAD_ARGUMENT
        assert r.alloc(C, C, DEVICE, 0, device_params()[:-1]).status == BAD_PARAMS
        assert r.alloc(C, dev, GROUP, 0, group_params() + b"x").status == BAD_PARAMS
        assert r.alloc(C, dev, GROUP, 0, group_params(19)).status == BAD_ARGUMENT  # no such engine
        old = r.alloc(C, dev, GROUP, 0, group_params(), wide=False)  # the form of 32 bytes
        assert old.status == OK and r.info(C, old.object, 2) == GROUP
        ch = r.make(C, old.object, CHANNEL, 0x5c000077)
        for classes in ((0xc36f,), (0xca6f,)):
            assert r.info(C, r.make(C, old.object, *classes), 2) == classes[0]
        assert r.info(C, 0x12345, 2) == -NOT_FOUND and r.info(C, dev, 3) == -BAD_ARGUMENT
        """,
    )


def test_freeing_takes_what_is_below(sim: Simulator) -> None:
    in_client(
        sim,
        """
        dev = r.make(C, C, DEVICE, 0, device_params())
        one, two = (r.make(C, dev, GROUP, 0, group_params()) for _ in range(2))
        channels = [r.make(C, group, CHANNEL) for group in (one, two) for _ in range(3)]
        below = r.make(C, channels[0], 0xcbc0)
        assert r.free(C, 0xdead) == NOT_FOUND
        assert r.free(C, one) == OK
        assert [r.info(C, x, 2) for x in channels[:3] + [below, one]] == [-NOT_FOUND] * 5
        assert [r.info(C, x, 2) for x in channels[3:] + [two]] == [CHANNEL] * 3 + [GROUP]
        assert r.schedule(C, one, True) == NOT_FOUND
        again = r.make(C, dev, GROUP, one, group_params())   # the handle is free again
        assert again == one
        assert r.free(C, C) == OK and r.free(C, C) == BAD_CLIENT and r.info(C, C, 2) == -BAD_CLIENT
        D = r.root()
        assert D != C                                         # and a client's handle is not
        """,
    )


def test_duplicates_keep_the_group(sim: Simulator) -> None:
    in_client(
        sim,
        """
        D = r.root()
        dev, other = (r.make(x, x, DEVICE, 0, device_params()) for x in (C, D))
        group = r.make(C, dev, GROUP, 0, group_params()); r.make(C, group, CHANNEL)
        made = r.dup(D, other, C, group)
        assert made.status == OK
        assert r.info(D, made.object, 2) == GROUP and r.info(D, made.object, 1) == other
        assert r.set_slice(D, made.object, 5000) == OK and r.get_slice(C, group) == 5000
        ids = [bytearray(4), bytearray(4)]
        assert [r.control(c_, o, GET_INFO, p)
                for (c_, o), p in zip(((C, group), (D, made.object)), ids)] == [OK, OK]
        assert ids[0] == ids[1]
        # The last one counts.
        assert r.free(C, group) == OK and r.get_slice(D, made.object) == 5000
        assert r.dup(D, other, C, group).status == NOT_FOUND
        assert r.dup(D, other, 0xc1d0dead, 1).status == BAD_CLIENT
        assert r.dup(D, 0xdead, D, made.object).status == BAD_PARENT
        assert r.dup(D, other, D, made.object, made.object).status == DUPLICATE_NAME
        assert r.dup(D, other, D, D).status == NOT_SUPPORTED
        """,
    )


def test_what_is_wrong_with_a_command_and_in_which_order(sim: Simulator) -> None:
    in_client(
        sim,
        """
        dev = r.make(C, C, DEVICE, 0, device_params()); sub = r.make(C, dev, SUBDEVICE)
        group = r.make(C, dev, GROUP, 0, group_params())
        on = b"\\1\\0\\0"
        assert r.control(0xc1dfffff, group, SCHEDULE, on) == BAD_CLIENT
        assert r.control(C, 0xdead, SCHEDULE, on) == NOT_FOUND
        assert r.control(C, group, 0xa06c0199, on) == BAD_COMMAND
        assert r.control(C, sub, SCHEDULE, on) == BAD_COMMAND          # of another class
        assert r.control(C, group, DISABLE, bytes(536)) == BAD_COMMAND
        assert r.control(C, dev, HANDLE_INFO, bytes(16)) == BAD_COMMAND
        for wrong in (b"", on[:2], on + b"\\0"):
            assert r.control(C, group, SCHEDULE, wrong) == BAD_PARAMS
        for address in (0, 8, 0x7fff_ffff_f000, 1 << 63):
            assert r.control_at(C, group, SCHEDULE, address, 3) == BAD_POINTER
        assert r.control(C, group, SCHEDULE, b"\\2\\0\\0") == BAD_ARGUMENT
        assert r.preempt(C, group, timeout_us=1_000_001) == BAD_ARGUMENT
        assert r.preempt(C, group, timeout_us=1_000_000) == OK
        assert r.schedule(C, group, True) == OK
        assert r.disable(C, sub, True, [(C, group)]) == NOT_FOUND      # no channel
        assert r.disable(C, sub, True, [(C, 0xdead)]) == NOT_FOUND
        assert r.disable(C, sub, True, []) == OK
        too_many = bytearray(536); struct.pack_into("<I", too_many, 4, 65)
        assert r.control(C, sub, DISABLE, too_many) == BAD_ARGUMENT
        kernel_only = bytearray(536); struct.pack_into("<Q", kernel_only, 16, 1)
        assert r.control(C, sub, DISABLE, kernel_only) == BAD_ARGUMENT
        """,
    )


def test_a_read_only_pointer_is_no_pointer(sim: Simulator) -> None:
    in_client(
        sim,
        """
        import mmap
        page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        libc = c.CDLL(None); libc.mmap.restype = c.c_void_p
        address = libc.mmap(None, c.c_size_t(4096), 1, 0x22, -1, c.c_long(0))
        assert r.control_at(C, C, HANDLE_INFO, address, 16) in (BAD_POINTER, NOT_FOUND)
        dev = r.make(C, C, DEVICE, 0, device_params())
        group = r.make(C, dev, GROUP, 0, group_params())
        assert r.control_at(C, group, GET_TIMESLICE, address, 8) == BAD_POINTER
        """,
    )


def test_numbers_and_sizes_that_the_kernel_module_does_not_know(sim: Simulator) -> None:
    """EINVAL, before anybody looks at the contents."""
    in_client(
        sim,
        """
        def refused(number, size):
            try: fcntl.ioctl(r.fd, number, bytearray(size))
            except OSError as error: return error.errno
            return 0
        def number(nr, size, magic=0x46): return 3 << 30 | size << 16 | magic << 8 | nr
        import fcntl
        for nr, size in ((0x2a, 32), (0x2b, 32), (0x29, 16), (0x34, 28)):
            for wrong in (size - 4, size + 4):
                assert refused(number(nr, wrong), wrong) == errno.EINVAL, (nr, wrong)
        assert refused(number(0x2a, 32), 32) == 0 and refused(number(0x2b, 48), 48) == 0
        assert refused(number(0x2a, 32, 0x47), 32) == errno.EINVAL
        for nr in (0x27, 0x4a, 200, 201, 218, 255):
            assert refused(number(nr, 16), 16) == errno.EINVAL
        assert refused(number(0x2a, 16000), 16000) == errno.EINVAL
        """,
    )


def test_the_handshake_of_versions(tmp_path: Path) -> None:
    code = """
        import fcntl
        data = bytearray(struct.pack("<II64s", 0, 0, b"%s"))
        fcntl.ioctl(r.fd, 0xc04846d2, data); print(struct.unpack("<II64s", data)[1:])
    """
    with simulator(tmp_path, driver_version="999.10") as sim:
        same, other = (
            in_client(sim, code % version).strip() for version in ("999.10", "580.00.qgpusim")
        )
    assert same.startswith("(1, b'999.10\\x00")
    assert other.startswith("(0, b'999.10\\x00")


def test_the_card_says_its_uuid(tmp_path: Path) -> None:
    with simulator(tmp_path, cards=3) as sim:
        out = in_client(
            sim,
            """
            import ctypes
            for card in (0, 2):
                dev = r.make(C, C, DEVICE, 0, device_params(card)); sub = r.make(C, dev, SUBDEVICE)
                raw = (c.c_char * 16)(); g.call("cuDeviceGetUuid", raw, card)
                assert r.gid(C, sub) == bytes(raw), (r.gid(C, sub), bytes(raw))
                print(r.gid(C, sub, flags=0))
            """,
        )
    assert out.count("GPU-") == 2


def test_what_libcuda_makes(sim: Simulator) -> None:
    """Per context a compute group of eight channels and two copy groups, gone with it; per
    process two clients.
    """
    with clients(sim) as (one,):
        assert one.ask("[len(r.channels(x)) for x in (gr, up, down)]") == "[8, 1, 1]"
        assert one.ask("[r.info(C, x, 1) == dev for x in (gr, up, down, sub)]") == str([True] * 4)
        many = one.number("len(r.objects())")
        one.ask(
            "globals().update(ctx=c.c_void_p()) or g.call('cuCtxCreate_v2', c.byref(ctx), 0, 0)"
        )
        assert one.ask("len(r.of_class(GROUP, last=LAST_HANDLE))") == "6"
        one.ask("g.call('cuCtxDestroy_v2', ctx)")
        assert one.number("len(r.objects())") == many
        one.end()
    calls = log_of(sim)
    made = [x.class_id for x in calls if x.name == "alloc" and x.ok]
    assert [made.count(x) for x in (0x41, 0x80, 0x2080, 0xA06C, 0xC86F)] == [2, 2, 1, 6, 20]
    assert [x.engine for x in calls if x.class_id == 0xA06C] == [1, 9, 10] * 2
    assert [x.name for x in calls if not x.ok and x.errno] == ["other"]  # the noise
    assert [x.class_id for x in calls if x.name == "alloc" and not x.ok] == [0x83DE]
    assert {x.pid for x in calls} == {x.owner for x in calls} == {one.pid}


def test_a_client_per_context(tmp_path: Path) -> None:
    with simulator(tmp_path, client_per_context=True) as sim:
        run(
            sim,
            """
            g = Cuda(); ctx = c.c_void_p(); g.launch(1000); g.call("cuCtxSynchronize")
            g.call("cuCtxCreate_v2", c.byref(ctx), 0, 0); g.call("cuCtxDestroy_v2", ctx)
            """,
        )
        calls = log_of(sim)
    groups = {x.client for x in calls if x.class_id == 0xA06C}
    assert len(groups) == 2
    assert len([x for x in calls if x.class_id == 0x41]) == 4
    assert len({x.client for x in calls if x.name == "free" and x.object == x.client and x.ok}) == 1


def test_many_contexts_and_threads(sim: Simulator) -> None:
    """Handles do not collide, nothing is left over."""
    run(
        sim,
        """
        import threading, sim_rm
        from sim_rm import *
        g = Cuda(); r = Rm(); before = r.objects(last=0x5c000400)
        def work():
            for _ in range(5):
                ctx = c.c_void_p()
                g.call("cuCtxCreate_v2", c.byref(ctx), 0, 0); g.launch(10)
                g.call("cuCtxDestroy_v2", ctx)
        threads = [threading.Thread(target=work) for _ in range(6)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert r.objects(last=0x5c000400) == before
        """,
    )
    assert not [x for x in log_of(sim) if x.name in ("schedule", "free", "dup") and not x.ok]
