"""The tag: one line by job_submit.lua in a job's comment or extra, which the node believes.

    qgpu/1 class=online share=30 mem=24576
    qgpu/1 class=offline share=30 mem=24576 cards=2
    qgpu/1 class=offline share=30 mem=24576 host=24576/4
    qgpu/1 whole; what the user had written there
    qgpu/1 node

`whole`: the job asked for whole cards, so each of its nodes has some. `node`: the job has its nodes
alone, with the cards that they have. `share` is percent and `mem` MiB of one card. `host`: memory
of the job may be taken back, and its memory request grew by so many MiB per node (here: spread over
the 4 CPUs that each node has at least). The user's text follows after "; ". A user's text in front
is never a tag: slurmctld's Lua strips it (qgpu_text.lua), and the node accepts only the exact form
(docs/specs/tag.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gres.config.schema import JobClass
from gres.printable import printable

_TAG = re.compile(
    r"qgpu/1 (?:(?P<whole>whole)|(?P<node>node)|class=(?P<cls>online|offline)"
    r" share=(?P<share>[1-9][0-9]{0,2}) mem=(?P<mem>[1-9][0-9]{0,9})"
    r"(?: cards=(?P<cards>[2-9]|1[0-6]))?"
    r"(?: host=(?P<host>0|[1-9][0-9]{0,11})(?:/(?P<cpus>[1-9][0-9]{0,5}))?)?)(?:; .*)?",
    re.DOTALL,
)
_BLANKS = " \t\r\n\v\f"


class TagError(ValueError):
    """A text begins like a tag and is none; the text is a sentence."""


@dataclass(frozen=True)
class Tag:
    """The promise to a job: a share (percent, MiB) of each of `cards` cards of a node.

    `job_class` None means whole cards; with `node` all that its nodes have, maybe none. Without
    `host` its memory is booked. Else it may be taken back, and the job's memory request grew by so
    many MiB per node; by a part of that per CPU where `cpus` says how many each node has.
    """

    job_class: JobClass | None = None
    share: int = 100
    mem: int = 0
    cards: int = 1
    node: bool = False
    host: int | None = None
    cpus: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the job has whole cards, without governing."""
        return self.job_class is None

    def __str__(self) -> str:
        if self.whole:
            return "qgpu/1 node" if self.node else "qgpu/1 whole"
        text = f"qgpu/1 class={self.job_class} share={self.share} mem={self.mem}"
        text += f" cards={self.cards}" if self.cards > 1 else ""
        text += "" if self.host is None else f" host={self.host}"
        return text if self.cpus is None else f"{text}/{self.cpus}"


def looks_like_tag(text: str) -> bool:
    """Whether a text begins as tags do, valid or not."""
    return text.lstrip(_BLANKS).startswith("qgpu/")


def parse_tag(text: str) -> Tag | None:
    """The tag at the beginning of `text`; None if it has none.

    Raises TagError for a text that begins like a tag without its exact form.
    """
    match = _TAG.fullmatch(text)
    if match is None:
        if looks_like_tag(text):
            raise TagError(
                f"the tag '{printable(text, 80)}' is not of the form"
                " 'qgpu/1 class=... share=... mem=...'"
            )
        return None
    if match["whole"] or match["node"]:
        return Tag(node=bool(match["node"]))
    if int(match["share"]) > 100:
        raise TagError(f"the tag names a share of {match['share']}; the limit is 100")
    return Tag(
        "online" if match["cls"] == "online" else "offline",
        int(match["share"]),
        int(match["mem"]),
        int(match["cards"] or 1),
        host=None if match["host"] is None else int(match["host"]),
        cpus=None if match["cpus"] is None else int(match["cpus"]),
    )
