"""Where jobs land: classes share cards, shares stay on one card, and no card is promised twice."""

from __future__ import annotations

from collections import Counter

from jobs_support import USABLE, Live

NAP = "exec sleep 600"


def running(live: Live, qos: str, gres: str, *options: str) -> int:
    """A job that sleeps, once it runs and has its grant."""
    job = live.submit(NAP, f"--qos={qos}", f"--gres={gres}", *options)
    live.until(
        lambda: live.state(job) == "RUNNING" and job in live.grants(), 20, f"the start of job {job}"
    )
    return job


def test_classes_share_a_card_and_a_second_online_job_takes_another(live: Live) -> None:
    node = ("-w", live.nodes[0])
    online = running(live, "online", "qgpu:60,vram:8G", *node)
    offline = running(live, "offline", "qgpu:60,vram:8G", *node)
    second = running(live, "online", "qgpu:60,vram:8G", *node)
    assert live.place(online) == live.place(offline)
    assert live.place(second)[0] == live.place(online)[0]
    assert live.place(second) != live.place(online)
    third = live.submit(NAP, "--qos=online", "--gres=qgpu:60", *node)
    live.until(lambda: live.reason(third) == "Resources", 10, f"job {third} waiting for Resources")
    assert live.state(third) == "PENDING"
    live.cancel(second)
    live.wait_state(third, "RUNNING")
    live.until(lambda: third in live.grants(), 5, "the grant of the third job")
    assert live.place(third) != live.place(online)


def test_memory_is_never_promised_twice(live: Live) -> None:
    jobs = [live.submit(NAP, "--qos=offline", "--gres=qgpu:10,vram:30G") for _ in range(11)]
    live.until(lambda: len(live.grants()) == 8, 20, "eight grants, two on each of four cards")
    waiting = [job for job in jobs if job not in live.grants()]

    def reasons() -> set[str]:
        return {live.reason(job) for job in waiting}

    # Slurm gives the first one the word Priority too, until it has looked at it.
    live.until(lambda: "Resources" in reasons() <= {"Resources", "Priority"}, 20, "the reasons")
    promised: Counter[str] = Counter()
    for grant in live.grants().values():
        assert len(grant.cards) == 1
        promised[grant.cards[0].uuid] += grant.cards[0].mem_cap
    assert len(promised) == 4
    assert max(promised.values()) <= USABLE


def test_a_share_never_spans_two_cards(live: Live) -> None:
    node = ("-w", live.nodes[0])
    for _ in range(2):
        running(live, "online", "qgpu:60", *node)
    # 40 shards are free on each card, 80 on the node: a share of 50 must not take some of both.
    split = live.submit(NAP, "--qos=online", "--gres=qgpu:50", *node)
    live.until(lambda: live.reason(split) == "Resources", 10, f"job {split} waiting for Resources")
    fits = running(live, "online", "qgpu:40", "-t5", *node)
    assert len(live.grant(fits).cards) == 1
    assert live.state(split) == "PENDING"


def test_a_whole_card_is_not_shared(live: Live) -> None:
    node = ("-w", live.nodes[1])
    whole = running(live, "offline", "qgpu:100", *node)
    share = running(live, "offline", "qgpu:1,vram:300M", *node)
    assert live.grant(whole).state == "whole"
    assert live.place(share) != live.place(whole)
    waits = live.submit(NAP, "--gres=gpu:1", *node)
    live.until(lambda: live.reason(waits) == "Resources", 10, "a whole card to wait for")


def test_a_whole_card_is_never_one_that_still_has_a_share(live: Live) -> None:
    """Slurm before 23.11.5 forgets that a card is shared when the first of its shares ends."""
    node = ("-w", live.nodes[0])
    first = running(live, "offline", "qgpu:10,vram:1G", *node)
    share = running(live, "offline", "qgpu:10,vram:1G", *node)
    assert live.place(first) == live.place(share)
    live.cancel(first)
    live.wait_gone(first)
    whole = running(live, "offline", "gpu:1", *node)
    waits = live.submit(NAP, "--gres=gpu:h200:1", *node)
    live.until(lambda: live.reason(waits) == "Resources", 10, "a whole card to wait for")
    assert live.place(whole) != live.place(share)
    live.cancel(share)
    live.wait_state(waits, "RUNNING")


def test_a_share_per_node(live: Live) -> None:
    job = running(live, "online", "qgpu:30", "-N2")
    grants = [live.paths(name).run_dir / f"grants/{job}.json" for name in live.nodes]
    live.until(lambda: all(grant.exists() for grant in grants), 20, "the grants of both nodes")
