"""qgpu.yaml, units, bracket lists and the fragments rendered from them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gres.config.enforcer import AuditSettings, EnforcerSettings
from gres.config.hostlist import HostlistError, expand
from gres.config.site import Config, ConfigError, load_config, parse_config
from gres.request.tables import tables_of
from gres.units import Duration, UnitError, format_mib, parse_duration, parse_mib, parse_size
from slurm_plugin.render import NAMES, RenderError, lua_literal, node_gres, render

EXAMPLE = Path(__file__).resolve().parents[3] / "configs" / "examples" / "qgpu.yaml"
SMALL = """
version: 1
cluster: c
default_class: offline
models: {h200: {memory: 80GiB, reserve: 2GiB}}
nodes: [{names: "n[1-2]", model: h200, count: 2, files: "/dev/%n/gpu[0-1]"}]
"""


def test_the_example_says_what_the_defaults_say() -> None:
    config = load_config(EXAMPLE)
    bare = parse_config(
        SMALL.replace("cluster: c", "cluster: sandbox").replace("/%n/gpu", "/nvidia")
    )
    assert config.model_copy(update={"qos": {}}) == bare


def test_a_share_has_memory_for_a_context_of_its_card() -> None:
    more = ', {names: "m", model: l4, count: 1, files: "/dev/nvidia0"}]'
    text = SMALL.replace("2GiB}}", "2GiB}, l4: {memory: 24GiB, context: 300MiB}}")
    config = parse_config(text.replace("}]", "}" + more))
    found = tables_of(config)
    assert {name: model.least for name, model in found.models.items()} == {"h200": 512, "l4": 300}
    assert found.min_mem == 512, "which card an untyped request gets is not known"
    with pytest.raises(ConfigError, match=r"l4\.context 25600 MiB is above what 24576 MiB a share"):
        parse_config(text.replace("}]", "}" + more).replace("300MiB", "25GiB"))


def test_a_node_has_everything_that_depends_on_its_name(tmp_path: Path) -> None:
    path = tmp_path / "qgpu.yaml"
    path.write_text(
        SMALL + "run_dir: /s/run/%n\nstate_dir: /s/lib/%n\ndriver: {libcuda: /s/%n/libcuda.so.1}\n"
    )
    config = load_config(path, node="n2")
    assert (config.run_dir, config.state_dir) == ("/s/run/n2", "/s/lib/n2")
    assert (config.driver.libcuda, config.driver.nvml) == ("/s/n2/libcuda.so.1", "auto")
    node = load_config(path).node("n2")
    assert node.run_dir == "/s/run/n2"
    assert [(card.index, card.path, card.usable) for card in node.cards] == [
        (0, "/dev/n2/gpu0", 79872),
        (1, "/dev/n2/gpu1", 79872),
    ]
    with pytest.raises(ConfigError, match="node 'n3' is not configured"):
        load_config(path, node="n3")


@pytest.mark.parametrize(
    ("version", "field"),
    [("22.05", "comment"), ("22.05.8", "comment"), ("23.02", "extra"), ("26.05", "extra")],
)
def test_the_tag_goes_where_this_slurm_has_a_field(version: str, field: str) -> None:
    assert parse_config(SMALL + f'slurm: {{version: "{version}"}}').tag_field == field
    assert (
        parse_config(SMALL + f'slurm: {{version: "{version}", tag_field: comment}}').tag_field
        == "comment"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "enforcer: {idle_relase: 100ms}",
            "enforcer.idle_relase: there is no such key; did you mean idle_release?",
        ),
        ("version: 1", "the key 'version' is written twice"),
        ("limits: {min_mem: 1GiB, min_mem: 2GiB}", "the key 'min_mem' is written twice"),
        ("enforcer: {window: 500}", "enforcer.window: '500' is not a duration"),
        ("enforcer: {window: 999999999d}", "'999999999d' is longer than 100 years"),
        ("doctor:", "doctor: write its keys below it, indented, or leave doctor out (found noth"),
        ("limits: {min_share: 50, max_share: 40}", "min_share 50 is above max_share 40"),
        (
            "limits: {min_mem: 79GiB}",
            "limits.min_mem 80896 MiB is above what 79872 MiB a share can have",
        ),
        (
            "limits: {max_share: 101}",
            "limits.max_share: Input should be less than or equal to 100 (found 101)",
        ),
        ("limits: {max_share: true}", "limits.max_share"),
        ("qos: {online: fast}", "qos.online"),
        (
            "classes: {online: {reserves: [compute]}}",
            "memory must be among the reserved dimensions",
        ),
        ("run_dir: run/qgpu", "'run/qgpu' must be an absolute path"),
        ("run_dir: /run/../etc", "must not contain '..'"),
        ("run_dir: '/run/q gpu'", "without blanks, quotes or shell characters"),
        ("run_dir: '/run/$(reboot)'", "without blanks, quotes or shell characters"),
        ("run_dir: /run/%h", "has a % that is not %n"),
        ("slurm: {version: 22.05}", "slurm.version"),
        (
            'slurm: {version: "22.05", tag_field: extra}',
            "tag_field extra does not exist in Slurm 22.05",
        ),
        ("managed_partitions: ['a b']", "'a b' is not a partition name"),
        ("hook: {deadlin: 3s}", "did you mean deadline?"),
    ],
)
def test_a_bad_key_is_refused_with_a_sentence(change: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(SMALL + change)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("count: 2", "count: 3", "names 2 device files, but count is 3"),
        ("model: h200", "model: h100", "the model 'h100', which is not under models"),
        ('"n[1-2]"', '"n[1-2],n2"', "node 'n2' is named twice"),
        ("h200: {memory: 80GiB", "online: {memory: 80GiB", "a model must not be called 'online'"),
        ("memory: 80GiB", "memory: 2GiB", "leaves too little to share"),
        ("memory: 80GiB", "memory: 80XB", "'80XB' is not a size"),
        ("default_class: offline", "default_class: null", "no job could use a share"),
        ("version: 1", "version: 2", "version: Input should be 1 (found 2)"),
        ("cluster: c\n", "", "cluster: this key is required"),
    ],
)
def test_a_contradiction_is_refused_with_a_sentence(old: str, new: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(SMALL.replace(old, new, 1))
    assert sentence in str(error.value)


def test_an_unreadable_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(ConfigError, match="is larger than 1048576 bytes"):
        load_config(tmp_path / "large.yaml")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1", 1),
        ("1k", 1024),
        ("1KiB", 1024),
        ("1KB", 1000),
        ("24G", 24 << 30),
        ("2TB", 2 * 10**12),
        ("007M", 7 << 20),
    ],
)
def test_sizes_are_slurms(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "1.5G", "-1", "1 G", "1GG", "1E", "9P", "1" * 5000])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_size(text)


def test_configured_memory_rounds_to_the_safe_side() -> None:
    assert (parse_mib(80), parse_mib("80"), parse_mib("80GiB")) == (80, 80, 81920)
    assert (parse_mib("1000KB"), parse_mib("1000KB", up=True)) == (0, 1)
    assert (format_mib(24576), format_mib(24577), format_mib(0)) == ("24G", "24577M", "0M")


def test_durations() -> None:
    assert parse_duration("1.5s") == Duration(1_500_000_000)
    assert (
        parse_duration("500us").us,
        parse_duration("500us").ms,
        parse_duration("2min").seconds,
    ) == (
        500,
        1,
        120.0,
    )
    assert [str(parse_duration(text)) for text in ("100ms", "1h", "0s")] == ["100ms", "1h", "0ns"]
    for bad in ("5", "5 years", "-1s", "", "1..5s"):
        with pytest.raises(UnitError):
            parse_duration(bad)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12]", ["n08", "n09", "n10", "n12"]),
        ("a,b[1-2]c", ["a", "b1c", "b2c"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_bracket_lists(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n[",
        "n]1[",
        "n[[1]]",
        "n[]",
        "n[a-b]",
        "n[3-1]",
        "a,,b",
        "n[1-99999999]",
        "n[1-999]" * 3,
    ],
)
def test_bad_bracket_lists(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


# ---- render


@pytest.fixture
def config() -> Config:
    return load_config(EXAMPLE)


def test_gres_conf_has_one_line_per_card_and_matches_the_node_line(config: Config) -> None:
    text = render("gres.conf", config)
    assert "NodeName=n[1-2] Name=gpu Type=h200 File=/dev/nvidia[0-1]\n" in text
    assert [line for line in text.splitlines() if "Name=shard" in line] == [
        f"NodeName=n[1-2] Name=shard Type=h200 Count=100 File=/dev/nvidia{card}" for card in (0, 1)
    ]
    newer = config.model_copy(
        update={"slurm": config.slurm.model_copy(update={"version": "24.11"})}
    )
    assert "Name=shard Count=100 File=" in render("gres.conf", newer)
    assert "Name=qgpu Type=offline Count=800 Flags=CountOnly" in text
    assert (
        node_gres(config, "n1")
        == "gpu:h200:2,shard:h200:200,qgpu:online:200,qgpu:offline:800,vram:156G"
    )
    assert f"NodeName=n[1-2] Gres={node_gres(config, 'n1')}\n" in render("slurm.conf", config)


def test_device_files_that_depend_on_the_node_give_lines_per_node() -> None:
    text = render("gres.conf", parse_config(SMALL))
    assert "NodeName=n1 Name=gpu Type=h200 File=/dev/n1/gpu[0-1]\n" in text
    assert "NodeName=n2 Name=shard Type=h200 Count=100 File=/dev/n2/gpu1\n" in text
    assert "%n" not in text


def test_the_hooks_are_scripts_that_exec_the_client(config: Config, tmp_path: Path) -> None:
    client = tmp_path / "client"
    client.write_text('#!/bin/sh\necho "$@"\n')
    client.chmod(0o755)
    hook = config.hook.model_copy(update={"client": str(client)})
    for kind in ("prolog", "epilog"):
        script = tmp_path / kind
        script.write_text(
            render(kind, config.model_copy(update={"hook": hook, "run_dir": "/run/%n"}))
        )
        done = subprocess.run(
            ["/bin/sh", str(script)], capture_output=True, text=True, check=True, env={}
        )
        assert (
            done.stdout
            == f"{kind} --run-dir /run/%n --deadline-ms 10000 --scontrol /usr/bin/scontrol\n"
        )
    quiet = hook.model_copy(update={"drain_command": False})
    assert "--scontrol" not in render("prolog", config.model_copy(update={"hook": quiet}))


def test_the_plugin_line(config: Config) -> None:
    assert (
        render("plugstack.conf", config).splitlines()[-1]
        == "optional /usr/lib/qgpu/qgpu_spank.so run_dir=/run/qgpu"
    )


def test_every_fragment_renders_and_others_do_not_exist(config: Config) -> None:
    assert all(render(name, config).endswith("\n") for name in NAMES)
    with pytest.raises(RenderError, match="there is no fragment 'passwd'"):
        render("passwd", config)


def test_lua_strings_survive_any_byte() -> None:
    assert lua_literal('a"b\\c\n') == r'"a\034b\092c\010"'
    assert (lua_literal(None), lua_literal(True), lua_literal(7)) == ("nil", "true", "7")


@pytest.mark.parametrize("policy", ["best-effort", "fixed-share", "burst-share"])
def test_every_policy_is_accepted_for_a_class(policy: str) -> None:
    config = parse_config(SMALL + f"classes: {{online: {{reserves: [memory], policy: {policy}}}}}")
    assert config.classes["online"].policy == policy
    assert config.classes["offline"].policy == "burst-share"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("cards: [{nodes: n9}]", "cards name the node 'n9', which is not under nodes"),
        ("cards: [{nodes: n1, cards: [2]}]", "which has 2 card(s); write an index from 0 to 1"),
        ("cards: [{uuids: [card0]}]", "cards.0.uuids: 'card0' is not a UUID of a card"),
        ("cards: [{policy: best-effort}]", "cards.0: no card is named; write nodes"),
        ("cards: [{nodes: n1, uuids: [GPU-1]}]", "not by both; leave one out"),
        (
            "cards: [{nodes: n1, slise: 1ms}]",
            "cards.0.slise: there is no such key; did you mean slice?",
        ),
        ("cards: [{nodes: n1, policy: {online: fair}}]", "cards.0.policy.online"),
        ("cards: [{nodes: n1, slice: 1us}]", "1us is outside 100us to 1s; write for example 100us"),
        ("enforcer: {window: 2s}", "enforcer.window: 2s is outside 50us to 1s"),
        (
            "enforcer: {idle_release: soon}",
            "qgpu.yaml: enforcer.idle_release: 'soon' is not a duration; write auto, or for",
        ),
        (
            "cards: [{nodes: n1, idle_release: [1]}]",
            "cards.0.idle_release: '[1]' is not a duration",
        ),
        ("enforcer: {online_delay: 1us}", "1us is outside 100us to 100ms; write for example 100us"),
        ("enforcer: {lease: 1ms}", "enforcer.lease: 1ms is outside 100ms to 10min"),
        (
            "enforcer: {audit: {acton: log}}",
            "enforcer.audit.acton: there is no such key; did you mean action?",
        ),
        ("enforcer: {audit: {action: scancel}}", "enforcer.audit.action"),
        ("enforcer: {memory_backend: dmem}", "enforcer.memory_backend"),
        ("enforcer: {managed: none}", "enforcer.managed: Input should be 'full' or 'resident'"),
        ("enforcer: {suspend_together: maybe}", "enforcer.suspend_together"),
        ("run: {allow_users: ['a b']}", "'a b' is not the name of a user or group"),
        (
            "run: {allow_user: [a]}",
            "run.allow_user: there is no such key; did you mean allow_users?",
        ),
        ("classes: {online: {reserves: [memory], isolation: half}}", "classes.online.isolation"),
    ],
)
def test_cards_and_policies_that_cannot_be_are_refused_with_a_sentence(
    change: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(SMALL + change)
    assert sentence in str(error.value)


SPEC = Path(__file__).resolve().parents[3] / "docs" / "specs" / "config.md"
FRAGMENTS = re.findall(r"```yaml\n# (valid|invalid): (.*)\n((?:.*\n)*?)```", SPEC.read_text())


def merged(fragment: str) -> str:
    """SMALL with the keys of a fragment in place of its own."""
    keys = {
        **yaml.safe_load(SMALL.replace("/dev/%n/gpu", "/dev/nvidia")),
        **yaml.safe_load(fragment),
    }
    return str(yaml.safe_dump(keys, sort_keys=False))


def test_the_specification_has_examples_of_both_kinds() -> None:
    assert {kind for kind, _, _ in FRAGMENTS} == {"valid", "invalid"} and len(FRAGMENTS) >= 6


@pytest.mark.parametrize(("kind", "sentence", "fragment"), FRAGMENTS)
def test_examples_of_the_specification_are_true(kind: str, sentence: str, fragment: str) -> None:
    if kind == "valid":
        assert parse_config(merged(fragment))
        return
    with pytest.raises(ConfigError) as error:
        parse_config(merged(fragment))
    assert sentence in str(error.value)


def test_every_key_is_in_the_specification() -> None:
    text = SPEC.read_text()
    for name in (*Config.model_fields, *EnforcerSettings.model_fields, *AuditSettings.model_fields):
        assert re.search(rf"[`.]{name}\b", text), f"docs/specs/config.md does not name {name}"


def test_qos_names_are_in_lower_case_as_slurm_keeps_them() -> None:
    found = parse_config(SMALL + "qos: {Batch: offline}\nsuspended: {BATCH: {extend_time: true}}\n")
    assert (found.qos, list(found.suspended)) == ({"batch": "offline"}, ["batch"])
    with pytest.raises(ConfigError, match="upper and lower case are the same"):
        parse_config(SMALL + "qos: {Batch: offline, batch: online}\n")
