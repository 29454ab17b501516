"""The shim's table of clients, devices, groups and channels against a model, and in odd cases."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass, field

import pytest
import shim_support as s

pytestmark = pytest.mark.native
UNIT = s.BUILD / "test" / "shim-rm-unit"
RACE = s.BUILD / "test" / "shim-rm-race"
ROOT, DEVICE, SUBDEVICE, GROUP, CHANNEL, MEMORY = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F, 0x40
LOST, MORE = 1, 4


@dataclass
class Device:
    """What `view` says of one device."""

    client: int
    device: int
    subdevice: int
    fd: int
    flags: int
    groups: set[tuple[int, int]] = field(default_factory=set)
    channels: set[tuple[int, int]] = field(default_factory=set)


def pairs(text: str) -> set[tuple[int, int]]:
    """`1:2 3:4`."""
    return {(int(a), int(b)) for a, b in (word.split(":") for word in text.split())}


class Table:
    """The unit program."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [UNIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, order: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def lines(self, order: str) -> list[str]:
        """An order whose answer ends with a dot."""
        self.tell(order)
        assert self.process.stdout
        found: list[str] = []
        while (line := self.process.stdout.readline()) != ".\n":
            assert line, "the program ended"
            found.append(line.rstrip("\n"))
        return found

    def number(self, order: str) -> int:
        self.tell(order)
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def view(self, order: str = "view") -> list[Device]:
        found = []
        for line in self.lines(order):
            head, groups, channels = line.split("|")
            client, device, subdevice, fd, flags = map(int, head.split())
            found.append(
                Device(client, device, subdevice, fd, flags, pairs(groups), pairs(channels))
            )
        return found

    def device(self) -> Device:
        """The only one."""
        (only,) = self.view()
        return only


@pytest.fixture
def table():  # type: ignore[no-untyped-def]
    running = Table()
    yield running
    assert running.process.stdin
    running.process.stdin.close()
    assert running.process.wait(60) == 0


@dataclass
class Thing:
    """An object of the model."""

    kind: int
    parent: int
    engine: int = 0
    scheduled: bool = False


class Model:
    """The driver: a tree per client, a free takes all that hangs below."""

    def __init__(self) -> None:
        self.clients: dict[int, dict[int, Thing]] = {}

    def drop(self, client: int, handle: int) -> None:
        if handle == client:
            self.clients.pop(client, None)
            return
        things = self.clients.get(client, {})
        if things.pop(handle, None):
            for child in [h for h, thing in things.items() if thing.parent == handle]:
                self.drop(client, child)

    def line(self, client: int, handle: int) -> list[int]:
        """An object and all above it."""
        things = self.clients[client]
        return (
            [handle]
            if handle not in things
            else [handle, *self.line(client, things[handle].parent)]
        )

    def devices(self) -> list[Device]:
        found = []
        for client, things in self.clients.items():
            for handle, thing in things.items():
                if thing.kind != DEVICE:
                    continue
                below = {h: t for h, t in things.items() if t.parent == handle}
                groups = {h for h, t in below.items() if t.kind == GROUP and t.scheduled}
                device = Device(client, handle, 0, 0, 0, {(h, below[h].engine) for h in groups})
                device.channels = {
                    (h, t.parent)
                    for h, t in things.items()
                    if t.kind == CHANNEL and t.parent in groups
                }
                device.channels |= {(h, 0) for h, t in below.items() if t.kind == CHANNEL}
                found.append(device)
        return found

    def subdevices(self, client: int, device: int) -> set[int]:
        things = self.clients[client]
        return {h for h, t in things.items() if t.kind == SUBDEVICE and t.parent == device}


class Program:
    """A program that allocates and frees by chance, as the driver would allow."""

    def __init__(self, table: Table, chance: random.Random) -> None:
        self.table, self.chance, self.model = table, chance, Model()

    def step(self) -> None:
        deed = self.chance.choices(
            [self.client, self.make, self.free, self.schedule, self.dup], [1, 12, 5, 6, 2]
        )
        deed[0]()

    def client(self) -> None:
        # often a handle that was used: the file of the former was closed
        handle = self.chance.randrange(1, 6)
        self.table.tell(f"alloc 0 0 0 {handle} {ROOT} 0")
        self.model.clients[handle] = {}

    def some_client(self) -> int | None:
        return self.chance.choice(list(self.model.clients)) if self.model.clients else None

    def make(self) -> None:
        client = self.some_client()
        if client is None:
            return
        things = self.model.clients[client]
        kind = self.chance.choice([DEVICE, SUBDEVICE, GROUP, GROUP, CHANNEL, CHANNEL, MEMORY])
        parents = {
            DEVICE: (),
            SUBDEVICE: (DEVICE,),
            MEMORY: (DEVICE,),
            GROUP: (DEVICE,),
            CHANNEL: (GROUP, DEVICE),
        }
        fits = [h for h, thing in things.items() if thing.kind in parents[kind]]
        if kind != DEVICE and not fits:
            return
        parent = client if kind == DEVICE else self.chance.choice(fits)
        handle, engine = self.chance.randrange(100, 160), self.chance.randrange(1, 19)
        if handle in self.model.line(client, parent):
            return
        self.model.drop(client, handle)  # used again although nobody was seen to free it
        self.table.tell(
            f"alloc 0 {client} {parent} {handle} {kind} {engine if kind == GROUP else 0}"
        )
        things[handle] = Thing(kind, parent, engine)

    def free(self) -> None:
        client = self.some_client()
        if client is None:
            return
        choice = [*self.model.clients[client]] * 8 + [client]
        handle = self.chance.choice(choice)
        self.table.tell(f"free {client} {handle}")
        self.model.drop(client, handle)

    def schedule(self) -> None:
        client = self.some_client()
        groups = [
            h
            for h, t in self.model.clients.get(client or 0, {}).items()
            if t.kind in (GROUP, CHANNEL)
        ]
        if not groups or client is None:
            return
        handle = self.chance.choice(groups)
        self.table.tell(f"schedule 0 {client} {handle}")
        thing = self.model.clients[client][handle]
        if thing.kind == CHANNEL:  # one of a group schedules the group
            thing = self.model.clients[client].get(thing.parent, thing)
        thing.scheduled = True

    def dup(self) -> None:
        client, source = self.some_client(), self.some_client()
        if client is None or source is None:
            return
        groups = [h for h, t in self.model.clients[source].items() if t.kind == GROUP]
        devices = [h for h, t in self.model.clients[client].items() if t.kind == DEVICE]
        handle = self.chance.randrange(200, 210)
        if not groups or not devices or handle in self.model.clients[client]:
            return
        group, device = self.chance.choice(groups), self.chance.choice(devices)
        self.table.tell(f"dup 0 {client} {device} {handle} {source} {group}")
        old = self.model.clients[source][group]
        self.model.clients[client][handle] = Thing(GROUP, device, old.engine, old.scheduled)


def same(table: Table, model: Model) -> None:
    """The table shows what the model has."""
    seen, wanted = table.view(), model.devices()
    for device in seen:
        choice = model.subdevices(device.client, device.device)
        assert device.subdevice in choice if choice else device.subdevice == 0
        device.subdevice = 0
    key = lambda device: (device.client, device.device)  # noqa: E731
    assert sorted(seen, key=key) == sorted(wanted, key=key)


@pytest.mark.parametrize("seed", range(20))
def test_follows_the_driver(table: Table, seed: int) -> None:
    program = Program(table, random.Random(seed))
    program.client()
    for _ in range(60):
        for _ in range(10):
            program.step()
        same(table, program.model)


def basic(table: Table, fd: int = 0) -> None:
    """A client with a device."""
    table.tell(f"alloc {fd} 0 0 7 {ROOT} 0")
    table.tell(f"alloc {fd} 7 7 10 {DEVICE} 0")
    table.tell(f"alloc {fd} 7 10 11 {SUBDEVICE} 0")


def group(table: Table, handle: int, fd: int = 0) -> None:
    table.tell(f"alloc {fd} 7 10 {handle} {GROUP} 1")
    table.tell(f"schedule {fd} 7 {handle}")


def test_a_group_shows_when_the_program_scheduled_it(table: Table) -> None:
    basic(table)
    table.tell(f"alloc 0 7 10 20 {GROUP} 3")
    table.tell(f"alloc 0 7 20 21 {CHANNEL} 0")
    assert table.device().groups == set() and table.device().channels == set()
    table.tell("schedule 0 7 21")
    assert table.device().groups == {(20, 3)} and table.device().channels == {(21, 20)}


def test_a_handle_that_another_thread_got_meanwhile_survives(table: Table) -> None:
    basic(table)
    group(table, 20)
    serial = table.number("freeing 7 20")
    assert serial and table.device().groups == set()  # nobody acts on what is just being freed
    group(table, 20)
    table.tell(f"freed 7 20 {serial}")
    assert table.device().groups == {(20, 1)}


def test_a_free_that_the_driver_refused_changes_nothing(table: Table) -> None:
    basic(table)
    group(table, 20)
    serial = table.number("freeing 7 20")
    table.tell(f"notfreed 7 20 {serial}")
    assert table.device().groups == {(20, 1)}


def test_memory_is_no_change(table: Table) -> None:
    """The teller is not woken for each cuMemAlloc."""
    basic(table)
    before = table.number("changes")
    table.tell(f"alloc 0 7 10 30 {MEMORY} 0")
    table.tell("free 7 30")
    assert table.number("changes") == before


def test_too_many_groups_are_reported_as_lost(table: Table) -> None:
    basic(table)
    for handle in range(100, 133):
        group(table, handle)
    assert table.device().flags == LOST and len(table.device().groups) == 32
    table.tell("free 7 132")
    assert table.device().flags == 0


def test_too_many_channels_are_said_so(table: Table) -> None:
    basic(table)
    group(table, 20)
    for handle in range(100, 165):
        table.tell(f"alloc 0 7 20 {handle} {CHANNEL} 0")
    assert table.device().flags == MORE and len(table.device().channels) == 64


def test_a_full_table_loses_its_client_and_recovers_with_the_next(table: Table) -> None:
    basic(table)
    for handle in range(100, 1200):
        table.tell(f"alloc 0 7 10 {handle} {GROUP} 1")
    assert table.device().flags == LOST
    table.tell("free 7 7")
    basic(table)
    assert table.device().flags == 0


def test_too_many_clients_lose_everything(table: Table) -> None:
    """Whose the next group is cannot be said."""
    basic(table)
    for handle in range(100, 116):
        table.tell(f"alloc 0 0 0 {handle} {ROOT} 0")
    assert table.device().flags == LOST


def test_a_call_of_another_size_loses_everything(table: Table) -> None:
    """Another driver's layout: what it did is not known."""
    basic(table)
    table.tell("odd")
    assert table.device().flags == LOST


def test_a_group_below_something_unknown_is_lost(table: Table) -> None:
    basic(table)
    table.tell(f"alloc 0 7 99 20 {GROUP} 1")
    assert table.device().flags == LOST


def test_a_child_of_fork_knows_nothing(table: Table) -> None:
    basic(table)
    group(table, 20)
    assert table.view("fork") == []
    assert table.device().groups == {(20, 1)}


def test_a_descriptor_that_the_program_replaced_is_not_used(table: Table) -> None:
    fd, other = table.number("open"), table.number("pipe")
    basic(table, fd)
    group(table, 20, fd)
    assert table.lines("borrow") == ["10 have"]
    table.tell(f"dup2 {other} {fd}")
    assert table.lines("borrow") == ["10 lost"]
    assert table.device().fd == -1
    again = table.number("open")
    table.tell(f"used {again} 7")
    assert table.device().fd == again and table.lines("borrow") == ["10 have"]


def test_a_descriptor_that_the_program_closed_is_not_used(table: Table) -> None:
    fd = table.number("open")
    basic(table, fd)
    table.tell(f"close {fd}")
    assert table.lines("borrow") == ["10 lost"]


def test_a_program_that_duplicated_its_descriptor_is_followed(table: Table) -> None:
    """Each call tells by which number the client is used."""
    fd = table.number("open")
    basic(table, fd)
    again = table.number("open")
    group(table, 20, again)
    table.tell(f"close {fd}")
    assert table.lines("borrow") == ["10 have"]


@pytest.mark.parametrize("program", [UNIT, RACE])
def test_threads_and_handlers_at_once(program: object) -> None:
    """Under AddressSanitizer and ThreadSanitizer: nothing is left over, nothing deadlocks,
    nothing races.
    """
    out = subprocess.run(
        [str(program)], input="race 20000\n", capture_output=True, text=True, timeout=120
    )
    assert out.returncode == 0 and out.stderr == "", out.stderr
    assert len(out.stdout.splitlines()) == 13 and all(
        line.endswith("| |") for line in out.stdout.splitlines()[:-1]
    )
