"""Hardware preemption without a kernel module: what must be found out first on a card, ranked.

Safety rule: only channel groups of our own test processes; no card-wide setting, no runlist or
engine command, no reset. Each experiment takes under 60 s and is an item of the set (`make gpu
PART=experiments`): bounded, recorded, resumable.
"""
