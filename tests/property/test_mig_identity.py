"""MIG: from Slurm's index by capability files to the instance that NVML knows, for any numbering
of the driver.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gres.config.mig import (
    Capability,
    Instance,
    MigError,
    Place,
    caps_of,
    files_of,
    instance_of,
    parse_minors,
)
from gres.config.site import CardSpec, Node
from gres.grant.identity import IdentityError, identify

# Some instances of some cards, and the driver's numbers for them in any order: nothing may rely on
# its formula.
PLACES = st.sets(
    st.builds(
        Place, st.integers(0, 31), st.builds(Instance, st.integers(0, 14), st.integers(0, 7))
    ),
    min_size=1,
    max_size=12,
)


@st.composite
def driver(draw: st.DrawFn) -> tuple[dict[int, Capability], list[Place]]:
    places = sorted(draw(PLACES))
    found = {
        Capability(p.minor, p.instance.gi, ci)
        for p in places
        if p.instance
        for ci in (None, p.instance.ci)
    }
    numbers = draw(
        st.lists(st.integers(1, 10**6), min_size=len(found), max_size=len(found), unique=True)
    )
    return dict(zip(numbers, sorted(found, key=str), strict=True)), places


def text_of(minors: dict[int, Capability]) -> str:
    lines = ["config 1", "monitor 2"]
    for minor, (gpu, gi, ci) in minors.items():
        lines.append(f"gpu{gpu}/gi{gi}/{'' if ci is None else f'ci{ci}/'}access {minor}")
    return "\n".join(lines) + "\n"


@given(driver())
def test_the_drivers_text_is_read_back(made: tuple[dict[int, Capability], list[Place]]) -> None:
    minors, _ = made
    assert parse_minors(text_of(minors)) == minors


@given(driver())
def test_files_lead_back_to_the_instance_that_they_were_made_for(
    made: tuple[dict[int, Capability], list[Place]],
) -> None:
    minors, places = made
    for place in places:
        assert instance_of(minors, place.minor, *caps_of(minors, place)) == place.instance
    assert len({files_of(minors, place) for place in places}) == len(places)


@given(driver(), st.data())
def test_any_other_pair_of_files_is_refused_or_another_instance(
    made: tuple[dict[int, Capability], list[Place]], data: st.DataObject
) -> None:
    """No two instances can be mixed up: a wrong pair never yields the right one."""
    minors, places = made
    place = data.draw(st.sampled_from(places))
    numbers = [*minors, 0]
    pair = data.draw(st.tuples(st.sampled_from(numbers), st.sampled_from(numbers)))
    if pair == caps_of(minors, place):
        return
    try:
        assert instance_of(minors, place.minor, *pair) != place.instance
    except MigError as error:
        assert "nvidia-cap" in str(error)


@given(driver(), st.data())
def test_slurms_index_names_the_configured_instance(
    made: tuple[dict[int, Capability], list[Place]], data: st.DataObject
) -> None:
    minors, places = made
    order = data.draw(st.permutations(places))
    numbers = {"/dev/nvidia": lambda n: (195, n), "/dev/nvidia-caps/nvidia-cap": lambda n: (237, n)}

    def device_number(path: str) -> tuple[int, int]:
        name = path.rstrip("0123456789")
        return numbers[name](int(path[len(name) :]))

    specs = []
    for index, place in enumerate(order):
        path, *caps = files_of(minors, place).split(",")
        specs.append(CardSpec(index, path, "m", 2, 1, tuple(caps)))
    node = Node("n1", "m", tuple(specs), "/r", "/s")
    wanted = data.draw(st.lists(st.sampled_from(range(len(order))), unique=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gres.grant.identity.device_number", device_number)
        found = identify(node, wanted, lambda: minors)
        assert [card.place for card in found] == [order[index] for index in wanted]
        assert [card.spec.index for card in found] == wanted
        twice = Node("n1", "m", (*specs, specs[0]), "/r", "/s")
        with pytest.raises(IdentityError, match="the same device"):
            identify(twice, range(len(specs) + 1), lambda: minors)
