"""qgpu-checkpoint against a driver that answers what the test says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.native
BUILD = Path(__file__).resolve().parents[3] / "build"
RUNNING, LOCKED, AWAY, BROKEN = "running", "locked", "checkpointed", "failed"
STATES = (RUNNING, LOCKED, AWAY, BROKEN)
FINE = "- 0 CUDA_SUCCESS"
NO_MEMORY, NO_SUPPORT = "2 CUDA_ERROR_OUT_OF_MEMORY", "801 CUDA_ERROR_NOT_SUPPORTED"
CARD = "GPU-{0}0000000-1111-2222-3333-44444444444{0}"


class Driver:
    """Processes by number, with their states; `fails` says what a call answers instead."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.directory, self.program = directory, program
        self.driver = BUILD / "test/checkpoint-fake.so"

    def put(self, **states: str) -> None:
        for name, state in states.items():
            (self.directory / name.removeprefix("p")).write_text(str(STATES.index(state)))

    def fails(self, call: str, pid: int, code: int, leaves: str) -> None:
        state = -1 if leaves == "none" else STATES.index(leaves)
        (self.directory / f"{call}.{pid}").write_text(f"{code} {state}")

    def run(self, *words: str | int, status: int = 0) -> list[str]:
        """The lines that it prints."""
        done = self.start(*words)
        assert done.returncode == status, done.stderr
        return done.stdout.splitlines()

    def start(self, *words: str | int) -> subprocess.CompletedProcess[str]:
        command = [self.program, "--driver", self.driver, *map(str, words)]
        return subprocess.run(
            command,
            env={"FAKE_DIR": str(self.directory)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self) -> list[str]:
        file = self.directory / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture(params=["bin/qgpu-checkpoint", "test/qgpu-checkpoint-asan"])
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Driver:
    return Driver(tmp_path, BUILD / request.param)


def test_all_are_locked_before_the_first_leaves(driver: Driver) -> None:
    driver.put(p10=RUNNING, p11=RUNNING)
    assert driver.run("leave", 10, 11) == [f"10 {AWAY} {FINE}", f"11 {AWAY} {FINE}"]
    assert driver.calls() == ["lock 10 10000", "lock 11 10000", "checkpoint 10", "checkpoint 11"]
    assert driver.run("return", 10, 11) == [f"10 {RUNNING} {FINE}", f"11 {RUNNING} {FINE}"]
    assert driver.calls() == ["restore 10", "restore 11", "unlock 10", "unlock 11"]


@pytest.mark.parametrize(
    ("action", "state", "calls"),
    [
        ("leave", AWAY, []),
        ("leave", LOCKED, ["checkpoint 10"]),
        ("return", RUNNING, []),
        ("return", LOCKED, ["unlock 10"]),
    ],
)
def test_what_is_half_done_is_finished(
    driver: Driver, action: str, state: str, calls: list[str]
) -> None:
    """By one that was killed, or by qgpud's second order."""
    driver.put(p10=state)
    end = AWAY if action == "leave" else RUNNING
    assert driver.run(action, 10) == [f"10 {end} {FINE}"]
    assert driver.calls() == calls


def test_a_process_without_cuda_is_skipped(driver: Driver) -> None:
    driver.put(p10=RUNNING)
    none = "none - 1 CUDA_ERROR_INVALID_VALUE"
    assert driver.run("leave", 9, 10, 10) == [f"9 {none}", f"10 {AWAY} {FINE}"]
    assert driver.run("state", 9, 10) == [f"9 {none}", f"10 {AWAY} {FINE}"]


def test_a_process_that_ends_meanwhile_needs_nothing(driver: Driver) -> None:
    driver.put(p10=RUNNING, p11=RUNNING)
    driver.fails("checkpoint", 10, 1, leaves="none")
    lines = driver.run("leave", 10, 11)
    assert lines[0].startswith("10 none - ") and lines[1] == f"11 {AWAY} {FINE}"


@pytest.mark.parametrize("step", ["lock", "checkpoint"])
def test_one_that_cannot_leave_keeps_all(driver: Driver, step: str) -> None:
    """Also one that had left before: the job stays together."""
    driver.put(p10=AWAY, p11=RUNNING, p12=RUNNING, p13=RUNNING)
    driver.fails(step, 12, 801, leaves=RUNNING if step == "lock" else LOCKED)
    assert driver.run("leave", 10, 11, 12, 13, status=1) == [
        f"10 {RUNNING} {FINE}",
        f"11 {RUNNING} {FINE}",
        f"12 {RUNNING} {step} {NO_SUPPORT}",
        f"13 {RUNNING} {FINE}",
    ]
    assert "checkpoint 13" not in driver.calls()


def test_the_way_back_that_fails_is_told_and_the_others_go_on(driver: Driver) -> None:
    driver.put(p10=RUNNING, p11=RUNNING, p12=RUNNING)
    driver.fails("checkpoint", 12, 801, leaves=BROKEN)
    driver.fails("restore", 10, 2, leaves=AWAY)
    assert driver.run("leave", 10, 11, 12, status=1) == [
        f"10 {AWAY} restore {NO_MEMORY}",
        f"11 {RUNNING} {FINE}",
        f"12 {BROKEN} checkpoint {NO_SUPPORT}",
    ]


def test_one_that_finds_no_room_keeps_all_away(driver: Driver) -> None:
    """But not one that never left."""
    driver.put(p10=AWAY, p11=AWAY, p12=AWAY, p13=LOCKED)
    driver.fails("restore", 11, 2, leaves=AWAY)
    assert driver.run("return", 10, 11, 12, 13, status=1) == [
        f"10 {AWAY} {FINE}",
        f"11 {AWAY} restore {NO_MEMORY}",
        f"12 {AWAY} {FINE}",
        f"13 {LOCKED} {FINE}",
    ]
    assert driver.calls() == ["restore 10", "restore 11", "checkpoint 10"]


def test_one_that_cannot_be_unlocked_leaves_the_others_free(driver: Driver) -> None:
    driver.put(p10=AWAY, p11=AWAY)
    driver.fails("unlock", 10, 401, leaves=LOCKED)
    assert driver.run("return", 10, 11, status=1) == [
        f"10 {LOCKED} unlock 401 CUDA_ERROR_ILLEGAL_STATE",
        f"11 {RUNNING} {FINE}",
    ]


@pytest.mark.parametrize(
    ("action", "call", "begins", "moves_to", "calls"),
    [
        ("return", "unlock", LOCKED, AWAY, ["unlock 10", "restore 10"]),
        ("leave", "lock", RUNNING, LOCKED, ["lock 10 10000", "checkpoint 10"]),
        ("leave", "checkpoint", LOCKED, RUNNING, ["checkpoint 10", "lock 10 10000"]),
        ("return", "restore", AWAY, LOCKED, ["restore 10", "unlock 10"]),
    ],
)
def test_a_state_that_moves_by_itself_is_followed(
    driver: Driver, action: str, call: str, begins: str, moves_to: str, calls: list[str]
) -> None:
    """A caller that was killed may have left an order under way."""
    driver.put(p10=begins)
    driver.fails(call, 10, 401, leaves=moves_to)
    lines = driver.run(action, 10, status=int(call in ("unlock", "checkpoint")))
    assert driver.calls()[:2] == calls
    if call not in ("unlock", "checkpoint"):  # there the fake answers the same again
        assert lines == [f"10 {AWAY if action == 'leave' else RUNNING} {FINE}"]


@pytest.mark.parametrize("action", ["leave", "return"])
def test_a_failed_process_moves_no_other(driver: Driver, action: str) -> None:
    driver.put(p10=RUNNING if action == "leave" else AWAY, p11=BROKEN)
    before = driver.run("state", 10, 11)
    assert driver.run(action, 10, 11, status=1) == [
        f"10 {RUNNING} {FINE}" if action == "leave" else f"10 {AWAY} {FINE}",
        f"11 {BROKEN} state 401 CUDA_ERROR_ILLEGAL_STATE",
    ]
    assert before[1] == f"11 {BROKEN} {FINE}" and driver.calls() == []


def test_a_state_that_the_driver_refuses_to_tell(driver: Driver) -> None:
    driver.put(p10=RUNNING)
    driver.fails("state", 10, 801, leaves=RUNNING)
    assert driver.run("state", 10) == [f"10 {BROKEN} state {NO_SUPPORT}"]
    assert driver.run("leave", 10, status=1) == [f"10 {BROKEN} state {NO_SUPPORT}"]


def test_an_error_without_a_name(driver: Driver) -> None:
    driver.put(p10=RUNNING)
    driver.fails("lock", 10, 4711, leaves=RUNNING)
    assert driver.run("leave", 10, status=1) == [f"10 {RUNNING} lock 4711 -"]


def test_cards_are_mapped_on_the_way_back_alone(driver: Driver) -> None:
    driver.put(p10=AWAY)
    pair = f"{CARD.format('a')}={CARD.format('b')}"
    same = f"{CARD.format('c')}={CARD.format('c')}"
    driver.run("--lock-ms", 5, "return", "--map", pair, "--map", same, 10)
    assert driver.calls() == ["restore 10 a0..4a=b0..4b c0..4c=c0..4c", "unlock 10"]
    driver.put(p11=RUNNING)
    driver.fails("checkpoint", 11, 801, leaves=AWAY)
    driver.run("--lock-ms", 5, "leave", "--map", pair, 11, status=1)
    assert driver.calls() == ["lock 11 5", "checkpoint 11", "restore 11", "unlock 11"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "usage"),
        (["leave"], "usage"),
        (["stay", "10"], "'stay' is not one of state, leave, return"),
        (["leave", "x1"], "'x1' is not one of at most 4096 numbers"),
        (["leave", "0"], "'0' is not"),
        (["leave", "-1"], "invalid option"),
        (["leave", "4194305"], "'4194305' is not"),
        (["leave", "1e3"], "'1e3' is not"),
        (["--lock-ms", "0", "leave", "1"], "'0' is not a time from 1 to 3600000 ms"),
        (["--map", "GPU-1=GPU-2", "return", "1"], "pairs GPU-UUID=GPU-UUID"),
        (["--map", CARD.format("a"), "return", "1"], "pairs GPU-UUID=GPU-UUID"),
        (["--map", f"{CARD.format('a')}={CARD.format('b')}x", "return", "1"], "pairs"),
        (["--map", f"{CARD.format('a')}={CARD.format('b')}"] * 17 + ["return", "1"], "pairs"),
        (["return", "--there", "x", "1"], "'x' is not one of at most 4096"),
        (["leave", *map(str, range(1, 4098))], "'4097' is not one of at most 4096"),
    ],
)
def test_wrong_words(driver: Driver, words: list[str], why: str) -> None:
    done = driver.start(*words)
    assert done.returncode == 2 and why in done.stderr and not done.stdout
    assert driver.calls() == []


def test_a_driver_that_cannot(driver: Driver) -> None:
    driver.put(p10=RUNNING)
    (driver.directory / "init").write_text("100")
    done = driver.start("leave", 10)
    assert (done.returncode, done.stdout) == (2, "") and "cuInit failed with 100" in done.stderr
    driver.driver = BUILD / "test/checkpoint-fake-old.so"
    done = driver.start("leave", 10)
    assert done.returncode == 2 and "no cuCheckpointProcessLock" in done.stderr
    assert "takes driver 570 or later" in done.stderr
    driver.driver = driver.directory / "none.so"
    done = driver.start("leave", 10)
    assert done.returncode == 2 and "cannot load the driver" in done.stderr


@pytest.mark.parametrize(
    ("word", "begin"),
    [("--help", "usage: qgpu-checkpoint --driver PATH"), ("--version", "qgpu-checkpoint 0.")],
)
def test_help_and_version(driver: Driver, word: str, begin: str) -> None:
    done = subprocess.run([driver.program, word], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(begin)
