"""What holds for one card: levels of qgpu.yaml over each other, live changes on top, words of a
command line.
"""

from __future__ import annotations

import pytest

from gres.config.levels import KEYS, CardPlan, CardPlanError, check_change, parse_words, plan_card
from gres.config.site import parse_config
from gres.units import Duration

TEXT = """
version: 1
cluster: c
default_class: offline
models:
  h200: {memory: 80GiB, policy: {offline: fixed-share}, slice: 1ms}
  l4: {memory: 24GiB}
nodes:
  - {names: "n[1-2]", model: h200, count: 2, files: "/dev/nvidia[0-1]"}
  - {names: n3, model: l4, count: 1, files: /dev/nvidia0}
cards:
  - {nodes: "n[1-2]", window: 275us}
  - {nodes: n2, cards: [1], policy: best-effort, isolation: {offline: none}}
  - {uuids: [GPU-special], slice: 5ms}
"""


def plan(node: str, index: int, uuid: str = "GPU-x", **live: str):
    config = parse_config(TEXT)
    return plan_card(config, config.node(node), index, uuid, live)


def test_a_card_without_entries_follows_classes_and_enforcer():
    found = plan("n3", 0)
    assert found.values() == {
        "slice": "2ms",
        "window": "275us",
        "idle_release": "100ms",
        "online_delay": "1ms",
        "online_share": "off",
        "hardware": "auto",
        "policy.online": "burst-share",
        "policy.offline": "burst-share",
        "isolation.online": "governed",
        "isolation.offline": "governed",
    }
    assert (
        found.sources["slice"] == "enforcer.slice"
        and found.sources["policy.online"] == "classes.online"
    )


def test_model_then_cards_then_later_cards_win():
    first = plan("n1", 0)
    assert (str(first.slice), str(first.window), first.policy["offline"]) == (
        "1ms",
        "275us",
        "fixed-share",
    )
    assert first.sources["slice"] == "models.h200" and first.sources["window"] == "cards[0]"
    second = plan("n2", 1)
    assert second.policy == {"online": "best-effort", "offline": "best-effort"}
    assert second.governed("online") and not second.governed("offline") and second.governed(None)
    assert plan("n2", 0).governed("offline"), "the entry names card 1 alone"
    assert str(plan("n1", 1, "GPU-special").slice) == "5ms"


def test_live_changes_win_over_everything_and_say_so():
    found = plan("n2", 1, slice="700us", **{"policy.online": "fixed-share"})
    assert (str(found.slice), found.policy["online"]) == ("700us", "fixed-share")
    assert found.sources["slice"] == found.sources["policy.online"] == "qgpu card set"
    assert found.sources["policy.offline"] == "cards[1]"


def released(found: CardPlan) -> tuple[str, str]:
    wait, delay = found.release()
    return str(wait), str(delay)


def test_idle_release_is_auto_on_every_level() -> None:
    text = TEXT.replace("l4: {memory: 24GiB}", "l4: {memory: 24GiB, idle_release: auto}")
    text = text.replace("window: 275us}", "window: 275us, idle_release: 20ms, online_delay: 2ms}")
    text += "enforcer: {idle_release: auto, online_delay: 500us}"
    config = parse_config(text)
    small = plan_card(config, config.node("n3"), 0, "GPU-x")
    assert small.sources["idle_release"] == "models.l4"
    assert small.sources["online_delay"] == "enforcer.online_delay"
    assert released(small) == ("100ms", "500us")
    large = plan_card(config, config.node("n1"), 0, "GPU-x")
    assert large.sources["idle_release"] == large.sources["online_delay"] == "cards[0]"
    assert released(large) == ("20ms", "0ns"), "a duration leaves online_delay without effect"
    assert str(large.online_delay) == "2ms", "and keeps it for a later auto"


def test_a_live_change_to_auto_and_back() -> None:
    assert released(plan("n3", 0)) == ("100ms", "0ns")
    changes = parse_words(["idle_release=auto", "online_delay=3ms"])
    found = plan("n3", 0, **changes)
    assert (found.value("idle_release"), found.value("online_delay")) == ("auto", "3ms")
    assert found.release() == (Duration(100 * 10**6), Duration(3 * 10**6))
    assert found.sources["idle_release"] == "qgpu card set"
    assert check_change(found.values()) == found.values()
    back = plan("n3", 0, **(changes | parse_words(["idle_release=50ms"])))
    assert released(back) == ("50ms", "0ns")


def test_online_share_counts_with_auto_only() -> None:
    config = parse_config(TEXT + "enforcer: {idle_release: auto, online_share: 05%}")
    wide = plan_card(config, config.node("n3"), 0, "GPU-x")
    assert (wide.share(), wide.value("online_share")) == (5, "5%")
    changes = parse_words(["online_share=20%"])
    assert plan_card(config, config.node("n3"), 0, "GPU-x", changes).share() == 20
    assert (
        plan_card(config, config.node("n3"), 0, "GPU-x", parse_words(["online_share=off"])).share()
        == 0
    )
    assert plan("n3", 0, **changes).share() == 0, "idle_release is a duration"
    off = parse_config(TEXT + "enforcer: {idle_release: auto, online_share: off}")
    assert plan_card(off, off.node("n3"), 0, "GPU-x").share() == 0, "YAML reads false"


def test_isolation_none_of_the_enforcer_is_both_classes():
    config = parse_config(TEXT + "enforcer: {isolation: none}")
    assert set(plan_card(config, config.node("n3"), 0, "GPU-x").isolation.values()) == {"none"}


def test_values_of_a_plan_can_be_set_again():
    values = plan("n2", 1).values()
    assert check_change(values) == values and set(values) == set(KEYS)


def test_one_word_counts_for_both_classes():
    assert parse_words(["policy=fixed-share", "slice=1ms"]) == {
        "policy.online": "fixed-share",
        "policy.offline": "fixed-share",
        "slice": "1ms",
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "nothing to change; write KEY=VALUE, for example slice=1ms"),
        (["slice"], "'slice' is not KEY=VALUE; write for example slice=1ms"),
        (["slice="], "'slice=' is not KEY=VALUE"),
        (["slise=1ms"], "there is no setting 'slise' of a card; known are slice, window"),
        (["lease=1s"], "there is no setting 'lease'"),
        (["slice=1ms", "slice=2ms"], "slice is given twice, as 1ms and as 2ms"),
        (["slice=5"], "slice=5 is refused: '5' is not a duration"),
        (
            ["slice=1us"],
            "slice=1us is refused: 1us is outside 100us to 1s; write for example 100us",
        ),
        (["slice=10s"], "slice=10s is refused: 10s is outside 100us to 1s; write for example 1s"),
        (["window=2s"], "window=2s is refused: 2s is outside 50us to 1s"),
        (["idle_release=2min"], "2min is outside 0ns to 1min"),
        (
            ["idle_release=soon"],
            "idle_release=soon is refused: 'soon' is not a duration; write auto, or for example"
            " 100ms",
        ),
        (["idle_release=AUTO"], "'AUTO' is not a duration; write auto, or for example 100ms"),
        (["online_delay=auto"], "online_delay=auto is refused: 'auto' is not a duration"),
        (["online_delay=99us"], "99us is outside 100us to 100ms; write for example 100us"),
        (["online_delay=101ms"], "101ms is outside 100us to 100ms; write for example 100ms"),
        (["online_share=5"], "'5' is neither off nor 1% to 100%; write for example 5%"),
        (["online_share=0%"], "'0%' is neither off nor 1% to 100%"),
        (["online_share=101%"], "'101%' is neither off nor 1% to 100%"),
        (["online_share=4.5%"], "'4.5%' is neither off nor 1%"),
        (["policy.online=fair"], "'best-effort', 'fixed-share' or 'burst-share'"),
        (["policy.batch=best-effort"], "there is no setting 'policy.batch'"),
        (["isolation=off"], "isolation.online=off is refused"),
    ],
)
def test_bad_words_are_refused_with_a_sentence(words, sentence):
    with pytest.raises(CardPlanError) as error:
        parse_words(words)
    assert sentence in str(error.value)
