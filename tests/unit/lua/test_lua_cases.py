"""The one table of cases, through the Lua modules in every Lua version."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gres_support import CASES, LUA_VERSIONS, Outcome, module, outcome

from gres.request.messages import MESSAGES
from slurm_plugin.submission import Submission

Case = tuple[str, dict[str, Any]]
ALL: list[Case] = [(name, case) for name, cases in CASES["cases"].items() for case in cases]


def submission(case: Case) -> Submission:
    name, body = case
    given = {"gres": body["in"]} if isinstance(body["in"], str) else body["in"]
    return Submission(**{**CASES["defaults"][name], **given})


def label(case: Case) -> str:
    given = case[1]["in"]
    text = (
        given
        if isinstance(given, str)
        else " ".join(f"{key}={value}" for key, value in given.items())
    )
    return f"{case[0]}-{text[:60]}"


def check(found: Outcome, body: dict[str, Any]) -> None:
    if "rule" in body:
        assert (found.key, body["says"] in (found.text or "")) == (body["rule"], True), found
        return
    want = Outcome(**{key: body.get(key) for key in ("gres", "tag", "comment", "extra", "host")})
    assert found == want


@pytest.mark.parametrize("version", LUA_VERSIONS)
@pytest.mark.parametrize("case", ALL, ids=label)
def test_lua_decides_as_the_table_says(case: Case, version: str) -> None:
    check(outcome(submission(case), case[0], version), case[1])


def test_the_table_is_large_and_reaches_every_sentence() -> None:
    assert len(ALL) >= 120
    refused = {body["rule"] for _, body in ALL if "rule" in body}
    # long texts (test_lua_bounds.py), the modify hook, several cards (test_lua_cards.py) and host
    # memory (test_lua_host.py) have tests of their own
    others = {
        "field_long",
        "spank_long",
        "spank_many",
        "text_long",
        "started",
        "kind",
        "whole_update",
        "qos_none",
        "cards_update",
        "cards_never",
        "cards_few",
        "cards_srun",
        "cards_tasks",
        "cards_whole",
        "host_grows",
        "host_changed",
    }
    assert refused == set(MESSAGES) - others


@pytest.mark.parametrize("case", [case for case in ALL if "rule" in case[1]], ids=label)
def test_what_a_sentence_suggests_is_accepted(case: Case) -> None:
    """Every `--gres=` in a refusal is a request that would work, with the QOS and partition it
    names.
    """
    name, _ = case
    job = submission(case)
    text = outcome(job, name).text or ""
    suggestions = re.findall(r"--gres=([^ ;]*[^ ;.,])", text)
    assert suggestions, text
    qos = re.search(r"--qos=([a-z]+)", text)
    partition = re.search(r"--partition=([a-z]+)", text)
    for gres in suggestions:
        kept = CASES["defaults"][name]
        again = Submission(
            gres=gres,
            qos=qos[1] if qos else kept["qos"],
            partition=partition[1] if partition else kept.get("partition"),
        )
        found = outcome(again, name)
        assert found.tag is not None, f"{text} suggests {gres}, but: {found.text}"


@pytest.mark.parametrize("version", LUA_VERSIONS)
def test_the_users_text_follows_the_tag(version: str) -> None:
    table, q = module(version)
    assert q.tagged(table({}), " mine ", table({})) == "qgpu/1 whole; mine"
    tag = table({"class": "online", "share": 1, "mem": 2})
    assert q.tagged(tag, "qgpu/1 whole;qgpu/;", table({})) == "qgpu/1 class=online share=1 mem=2"
    assert q.strip_tags("qgpu/1 a; b; c") == "b; c"
