"""What doctor says about idle_release: a hint, never a warning."""

from __future__ import annotations

import pytest
from site_support import Site

from cli.doctor.checks import node
from enforcer.daemon.requests.protocol import NoDaemonError


def said(site: Site, *values: str) -> tuple[str, str, str]:
    """The check of a node whose cards have these values."""
    site.daemon["cards"] = [
        {"index": index, "settings": {"idle_release": value}} for index, value in enumerate(values)
    ]
    (found,) = [check for check in site.checks() if check.name == "idle_release"]
    return found.status, found.text, found.todo


def test_a_duration_gets_a_hint_that_works_when_typed(site: Site) -> None:
    status, text, todo = said(site, "auto", "100ms", "100ms")
    assert status == "ok" and text.startswith("100ms on card 1, 2: so long a card idles")
    assert "qgpu card set 1 idle_release=auto" in todo and "enforcer: {idle_release: auto}" in todo


def test_nothing_is_recommended_where_nothing_is_to_gain(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "auto: jobs that leave a card fast come at once"
    assert said(site, "auto", "auto") == ("ok", told, "")
    assert said(site) == ("ok", "qgpud names no card", "")

    def gone(*_: object, **__: object) -> None:
        raise NoDaemonError("nobody")

    with monkeypatch.context() as patch:
        patch.setattr(node, "ask", gone)
        assert said(site, "100ms") == ("ok", "not asked, since qgpud does not answer", "")
    text = site.yaml.read_text().replace("qos: {online: online, ", "qos: {")
    site.yaml.write_text(text)
    site.reread()
    assert said(site, "100ms")[1:] == ("jobs are of one class, so none waits for the other", "")
