"""The sentences that refuse a request. `qgpu render qgpu_tables.lua` copies them; the Lua modules
fill them in.

Each names the bad token, the limit, and a request that would work. `{name}` is replaced by plain
text.
"""

from __future__ import annotations

MESSAGES: dict[str, str] = {
    "share_missing": "{token} names no share: write whole percent of one card from {min} to {max},"
    " for example --gres=qgpu:{example}.",
    "share_text": (
        "{token} is refused: '{word}' is not a whole number of percent from {min} to {max}; write"
        " for example --gres=qgpu:{example}."
    ),
    "share_low": "{token} is refused: the share of a card must be at least {min} percent;"
    " write for example --gres=qgpu:{example}.",
    "share_high": "{token} is refused: the share of a card may be at most {max} percent here;"
    " write --gres=qgpu:{max}, or --gres=gpu:1 for a whole card.",
    "share_multiple": (
        "{token} is refused: above 100 percent only whole cards are given, in multiples of 100;"
        " write --gres=qgpu:{up} for whole cards, or at most --gres=qgpu:{max} on one card."
    ),
    "cards_many": "{token} is refused: no node has more than {cards} such card(s);"
    " write at most --gres=qgpu:{top}.",
    "doubled": "{token} is refused: qgpu is asked for twice; write it once,"
    " for example --gres=qgpu:{example}.",
    "doubled_mem": "{token} is refused: vram is asked for twice; write it once,"
    " for example --gres=qgpu:{example},vram:{low}M.",
    "parts": "{token} is refused: it has too many parts; write --gres=qgpu:{example},"
    " or --gres=qgpu:{model}:{example} for a certain model.",
    "model_unknown": "{token} is refused: there is no card model '{word}' here, only {models};"
    " write for example --gres=qgpu:{model}:{example}.",
    "class_by_hand": "{token} is refused: the class comes from the QOS, not from the request;"
    " write --gres=qgpu:{example} and choose the class with --qos ({qos_list}).",
    "mem_alone": "{token} is refused: vram goes with a share of a card;"
    " write for example --gres=qgpu:{example},vram:{low}M.",
    "mem_text": "{token} is refused: '{word}' is not an amount of memory; write a whole number with"
    " M, G or T, for example --gres=qgpu:{example},vram:{low}M.",
    "mem_low": "{token} is refused: the least is {low}M, and a number without a unit counts bytes;"
    " write for example --gres=qgpu:{share},vram:{low}M.",
    "mem_high": "{token} is refused: one card has {usable}M to share;"
    " write at most --gres={ask},vram:{usable}M.",
    "mem_high_untyped": "{token} is refused: the smallest card has {usable}M to share;"
    " write at most vram:{usable}M, or name a larger card,"
    " for example --gres=qgpu:{model}:{share},{token}.",
    "mem_whole": "{token} is refused beside {other}: whole cards come with all their memory;"
    " write --gres={other}, or --gres=qgpu:{max},vram:{low}M for a share of one.",
    "mem_default_low": (
        "{token} is refused: it would come with {mem}M of memory, but the least is {low}M; write"
        " for example --gres={token},vram:{low}M."
    ),
    "gpu_and_qgpu": "{token} is refused beside {other}: a job has either a share or whole cards;"
    " write --gres=qgpu:{example} for a share, or --gres=gpu:1 for a whole card.",
    "by_hand": "{token} is refused: qgpu itself books what is shared;"
    " write for example --gres=qgpu:{example}.",
    "spelling": "{token} is refused in {option}: a share is asked for per node;"
    " write for example --gres=qgpu:{example}.",
    "option": "{option} is refused together with {token}: it is about whole GPUs;"
    " leave it out, for example --gres=qgpu:{example}{instead}.",
    "exclusive": (
        "--exclusive is refused together with {token}: it would take every card of the node; leave"
        " it out, or write --gres=gpu:1 --exclusive for whole cards."
    ),
    "exclusive_bare": (
        "--exclusive={word} is refused in partition '{where}': it would keep a node's cards from"
        " others, and none would be booked; leave it out, or write --gres=gpu:1 --exclusive for"
        " the whole node."
    ),
    "exclusive_for": (
        "--exclusive={word} is refused together with {token}: it would keep the node's cards from"
        " others, and no more than {token} would be booked; leave it out, or write --gres=gpu:1"
        " --exclusive for the whole node."
    ),
    "bound": (
        "--gres-flags=enforce-binding is refused together with {token}: without --ntasks-per-node"
        " Slurm would book all cores near the card; leave it out, or write for example"
        " --gres=qgpu:{example} --ntasks-per-node=1 --cpus-per-task=4."
    ),
    "whole_many": (
        "{token} is refused: where cards are shared this version of Slurm can give one whole card"
        " per node and only by --gres; write --gres=gpu:1, or add --exclusive, or use a partition"
        " whose cards are not shared."
    ),
    "whole_shape": (
        "{token} is refused: whole cards are counted for each node, so each node of a job needs an"
        " equal number of them; write --nodes={nodes} --gres={gres} in its place."
    ),
    "whole_update": (
        "job {job} waits for whole cards that are counted on each of its nodes, and this update"
        " would contradict the count; cancel it and submit it again with what you need, for example"
        " --gres=gpu:1 --nodes=2."
    ),
    "old_word": "{token} is refused: the memory of a share is called vram;"
    " write --gres=qgpu:{example},vram:{size}.",
    "qos_unmapped": "QOS '{word}' has no class for {token}; the QOS with a class are {qos_list};"
    " write for example --gres={token} --qos={qos}.",
    "qos_mixed": "QOS '{word}' names both classes for {token}; write one of {qos_list},"
    " for example --gres={token} --qos={qos}.",
    "partition": "{token} is refused: partition '{word}' has no cards that are shared;"
    " write for example --gres={token} --partition={partition}.",
    "field_long": "{token} is refused: it has {bytes} bytes, and Slurm takes at most {limit} there;"
    " write a shorter one, for example --gres=qgpu:{example} alone.",
    "spank_long": (
        "the options of SPANK plugins are refused: they have {bytes} bytes in all, and at most"
        " {limit} fit beside what Slurm hands to a node's Prolog; write shorter ones, or"
        " --gres=qgpu:{example} without them."
    ),
    "spank_many": (
        "the options of SPANK plugins are refused: they have {lines} lines in all, and at most"
        " {limit} are taken; use fewer, or --gres=qgpu:{example} without them."
    ),
    "text_long": "the {field} has {bytes} bytes, but beside qgpu's own line only {room} fit;"
    " write a shorter one, for example --{field}=test.",
    "cards_never": (
        "{token} on {cards} cards is refused: on this cluster a job has a part of one card of each"
        " node, or whole cards; write --gres=qgpu:{example}, or --gres=gpu:1 for a whole one."
    ),
    "cards_few": "{token} on {cards} cards is refused: no node has more than {top} such card(s);"
    " write --gres=qgpu:{share} --qgpu-cards={top}.",
    "cards_srun": (
        "{token} for each task is refused for srun alone: Slurm would put all its tasks on one"
        " card; write sbatch -N{nodes} -n{tasks} --tres-per-task={each} with srun in the script,"
        " where each task has a card of its own."
    ),
    "cards_whole": "{token} is refused: it goes with a share of a card; write for example"
    " --gres=qgpu:{example} --qgpu-cards={cards}.",
    "cards_tasks": (
        "{token} with {what} tasks per node is refused: on this cluster a share goes with one task"
        " for each card; write --gres=qgpu:{example} --ntasks-per-node={cards} --cpus-per-task=4"
        " and start the rest from there."
    ),
    "kind": (
        "job {job} cannot change from {word} to {what} while it waits: this Slurm would go on"
        " counting the old gres in its accounting; cancel it and submit it again, for example with"
        " --gres=qgpu:{example}."
    ),
    "cards_update": (
        "job {job} waits for its cards as they are: on this cluster neither gres, class nor"
        " partition of a share can be changed; cancel it and submit it again, for example with"
        " --gres=qgpu:{example}."
    ),
    "qos_none": (
        "the class of job {job} comes from its QOS, so an update has to name one of {qos_list};"
        " write for example --qos={qos} --gres=qgpu:{example}."
    ),
    "started": "job {job} has started: {what} of a job with cards cannot be changed any more;"
    " cancel it and submit it again, for example with --gres=qgpu:{example}.",
    "host_high": (
        "{token} is refused: its memory may be taken back to host memory, so {cap}M are added to"
        " the job's own {own}M, and a node gives at most {limit}M to a job; write at most"
        " --mem={room}M, or less of the card, for example --gres=qgpu:{share},vram:{low}M."
    ),
    "host_never": (
        "{token} is refused: its {cap}M of memory may be taken back to host memory, and a node"
        " gives at most {limit}M of that to a job; ask for less vram, for example"
        " --gres=qgpu:{share},vram:{low}M."
    ),
    "host_grows": (
        "memory of this job on its card may be taken back to its host memory, so its request per"
        " {what} grew from {own}M to {mib}M."
    ),
    "host_changed": (
        "job {job} cannot be changed so: its memory request is not what qgpu wrote; cancel it and"
        " submit it again, for example with --gres=qgpu:{example}."
    ),
}
