"""Real qgpud, arbiter, shim, SPANK plugin and simulated MIG instances: from Slurm's index to a
cap on that instance.
"""

from __future__ import annotations

import json
import os

import pytest
from node_support import until

MIB, GIB = 1 << 20, 1 << 30
MORE = 'slurm: {version: "24.11", tag_field: comment}\n'

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]


def listed(chain):
    code, out, err = chain.said("card", "list", "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("index", [0, 1])
def test_a_jobs_share_is_of_the_instance_that_slurm_gave(start, index):
    chain = start(MORE, mig=2)
    cards = listed(chain)
    assert [card["index"] for card in cards] == [0, 1] and len(
        {card["uuid"] for card in cards}
    ) == 2
    assert all(card["uuid"].startswith("MIG-") for card in cards)
    assert chain.hook("prolog", 7, "qgpu/1 class=online share=30 mem=1024", gpus=str(index)) == 0
    grant = json.loads((chain.directory / "run/grants/7.json").read_text())
    assert [card["uuid"] for card in grant["cards"]] == [cards[index]["uuid"]]
    task = chain.task(7, "--length", "1", "--kernel-us", "200", "--alloc-past", "4GiB")
    until(lambda: task.poll() is not None or chain.tenants())
    tenants = {tenant.uuid for tenant in chain.tenants()}
    out, err = task.communicate(timeout=60)
    assert task.returncode == 0, err
    done = json.loads(out)
    assert done["alloc"]["refused"] and GIB // 2 < done["alloc"]["bytes"] <= GIB
    assert tenants == {cards[index]["uuid"]}
    assert chain.hook("epilog", 7) == 0
    row = chain.usage(7)
    assert row.card_index == index and row.launches >= done["kernels"] > 0


def test_hardware_preemption_is_off_for_instances(start):
    chain = start(MORE + "cards: [{nodes: n1, hardware: on}]\n", mig=2)
    assert chain.hook("prolog", 7, "qgpu/1 class=offline share=30 mem=1024") == 0
    _, out, _ = chain.said("card", "show", "0")
    assert "MIG-" in out and "off because" in out


def test_a_program_without_slurm_gets_an_instance(start):
    chain = start(MORE, mig=2)
    code, out, err = chain.said(
        "run", "--share", "30", "--card", "1", "--", "printenv", "CUDA_VISIBLE_DEVICES"
    )
    assert code == 0 and out.strip() == listed(chain)[1]["uuid"], err


def test_the_inventory_is_what_the_configuration_says(start):
    chain = start(MORE, mig=2)
    code, out, err = chain.said("card", "instances")
    assert code == 0, err
    assert out.startswith("instances:\n") and all(card["uuid"] in out for card in listed(chain))
