#!/bin/bash
# Makes build/gpu-bundle: all that `make gpu` needs on a machine without network. Carry it there
# beside the checkout, at the same place. usage: bench/gpu/bundle.sh [PYTHON_VERSION...] (default
# 3.12); needs the network, an installed .venv and built parts.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$root/build/gpu-bundle
venv=${VENV:-$root/.venv}
packages=(click jinja2 markupsafe nvidia-ml-py prometheus-client psutil pydantic pydantic-core
    annotated-types typing-extensions typing-inspection pyyaml rich markdown-it-py mdurl pygments
    pytest pytest-timeout pluggy iniconfig packaging)

# The versions that the tests ran with; pip would choose each of them alone.
pins() {
    "$venv/bin/python" -c '
import importlib.metadata as m, sys
for name in sys.argv[1:]:
    print(f"{name}=={m.version(name)}")' "${packages[@]}"
}

wheels() {
    local version=$1 dir=$bundle/site/$1
    rm -rf "$dir.new" && mkdir -p "$dir.new"
    # shellcheck disable=SC2046
    "$venv/bin/python" -m pip install --disable-pip-version-check -qq --no-deps --no-compile \
        --only-binary=:all: --python-version "$version" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 --target "$dir.new" $(pins)
    rm -rf "$dir.new/bin" "$dir.new/example.py" "$dir" && mv "$dir.new" "$dir"
}

headers() {
    local found
    mkdir -p "$bundle/include"
    for found in "$venv"/lib/python3*/site-packages/nvidia/cu*/include/{cuda,cudaTypedefs}.h \
        "$venv"/lib/python3*/site-packages/nvidia/nvml_dev/include/nvml.h; do
        if [ -e "$found" ]; then cp "$found" "$bundle/include/"; fi
    done
}

# Used where the other machine has no compiler.
prebuilt() {
    local part
    rm -rf "$bundle/native"
    for part in $("$root/bench/gpu/make.sh" --parts); do
        mkdir -p "$bundle/native/$(dirname "$part")"
        cp "$root/build/$part" "$bundle/native/$part"
        strip --strip-debug "$bundle/native/$part"
    done
}

# For a machine without nvcc; sm_90 and its PTX, which newer cards compile for themselves.
programs() {
    local nvcc name
    nvcc=$(command -v nvcc || true)
    if [ -z "$nvcc" ]; then
        echo "gpu-bundle: no nvcc here:" \
            "the other machine must have one to run the runtime-API programs"
        return 0
    fi
    mkdir -p "$bundle/programs"
    "$venv/bin/python" - "$bundle/programs" <<'PYTHON'
import sys
from pathlib import Path
from bench.gpu.place import Place
made = Place(False, Path(sys.argv[1])).compile_all(
    Path(sys.argv[1]), ("-gencode", "arch=compute_90,code=[sm_90,compute_90]")
)
print(f"gpu-bundle: {len(made)} programs compiled")
PYTHON
}

cd "$root"
[ $# -gt 0 ] || set -- 3.12
for version in "$@"; do wheels "$version"; done
headers
prebuilt
programs
rm -rf "$bundle/whl"
du -sh "$bundle" | sed 's/^/gpu-bundle: /'
