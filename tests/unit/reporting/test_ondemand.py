"""Open OnDemand's pages count cards with our initializer, whatever Slurm it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_counts import OOD_CORE, ondemand

# Words of squeue, sinfo and sacct, as 22.05.8, 24.11.5 and 26.05.5 printed them, and the cards.
SEEN = {
    "gres:qgpu:online:30,gres:shard:30,gres:vram:23961M": 1,
    "gres/qgpu:online:20,gres/shard:h200:20,gres/vram:15974M": 1,
    "gres:shard:h200:100": 1,
    "gres/gpu:h200:1": 1,
    "gres/gpu:h200:2,gres/qgpu:online:200": 2,
    "gres:shard:100,gres:qgpu:online:100": 1,
    "gpu:h200:2,shard:h200:200,qgpu:online:200,qgpu:offline:800,vram:156G": 2,
    "gpu:h200:0(IDX:N/A),shard:h200:2(IDX:0-1),qgpu:online:50,qgpu:offline:30,vram:54759784448": 2,
    "gpu:h200:0(IDX:N/A),shard:h200:0(IDX:N/A),qgpu:online:0,qgpu:offline:0,vram:0": 0,
    "gpu:h200:1(IDX:1),shard:h200:66(66/100,0/100),qgpu:online:50,qgpu:offline:30,vram:54759": 2,
    "gpu:h200:1(IDX:1),shard:h200:66(66/100,-/100),qgpu:online:50,qgpu:offline:30,vram:54759": 2,
    "gpu:h200:2(IDX:0-1),shard:h200:0(-/100,-/100),qgpu:online:0,qgpu:offline:0,vram:0": 2,
    "billing=1,cpu=1,gres/qgpu:online=30,gres/qgpu=30,gres/shard=30,gres/vram=251249,mem=64M": 1,
    "billing=1,cpu=1,gres/gpu=2,gres/qgpu=200,mem=64M,node=1": 2,
    # Nodes and jobs without qgpu are counted as before.
    "gpu:a100:4(S:0-1)": 4,
    "gpu:NVlink_A100_40GB:2(IDX:0,3)": 2,
    "gres:third:sub:17,gres:gpu:v100-32g:2,gres:pfsdir:1": 2,
    "(null)": 0,
    "N/A": 0,
}


@pytest.mark.parametrize("release", OOD_CORE)
def test_cards_are_counted(tmp_path: Path, release: str) -> None:
    assert dict(zip(SEEN, ondemand(list(SEEN), tmp_path, release), strict=True)) == SEEN
