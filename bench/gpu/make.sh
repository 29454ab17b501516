#!/bin/bash
# What `make gpu` does: finds a Python that has qgpu's packages, builds the native parts, runs the
# set. No network, no Slurm.
# usage: bench/gpu/make.sh [OPTION of python -m bench.gpu]...    or: bench/gpu/make.sh --parts
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bundle=$root/build/gpu-bundle
parts="bin/qgpu-arbiter bin/qgpu-workload bin/qgpu-simgpu shim/libcuda.so.1 shim/libnvidia-ml.so.1
    sim/libcuda.so.1 sim/libnvidia-ml.so.1 test/launch-bench test/own test/stops
    test/stub/libcuda.so.1"
if [ "${1:-}" = --parts ]; then echo "$parts"; exit; fi
cd "$root"
mkdir -p build

ask='import click, jinja2, prometheus_client, psutil, pydantic, pynvml, rich, yaml'

# Sets python and PYTHONPATH: the environment of the checkout, the machine's own packages, or the
# bundle's.
find_python() {
    local candidate version
    for candidate in "${VENV:-.venv}/bin/python" python3; do
        python=$(command -v "$candidate" || true)
        if [ -n "$python" ] && "$python" -c "$ask" 2>/dev/null; then return; fi
    done
    version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    export PYTHONPATH=$bundle/site/$version${PYTHONPATH:+:$PYTHONPATH}
    if python3 -c "$ask" 2>/dev/null; then return; fi
    echo "make gpu: this Python $version lacks qgpu's packages" \
        "and build/gpu-bundle/site/$version has none that work;" >&2
    echo "  with a network: make setup; without: 'bench/gpu/bundle.sh $version' elsewhere," \
        "and carry build/gpu-bundle here" >&2
    exit 2
}

include_of() { # $1 header: the first directory that has it, for a compiler
    local place
    for place in "$root"/.venv/lib/python3*/site-packages/nvidia/*/include \
        "$bundle/include" /usr/local/cuda/include; do
        if [ -e "$place/$1" ]; then echo "$place"; return; fi
    done
}

build() {
    local cuda nvml targets=() part
    cuda=$(include_of cuda.h) nvml=$(include_of nvml.h)
    if command -v "${CC:-gcc}" >/dev/null && command -v make >/dev/null &&
        [ -n "$cuda" ] && [ -n "$nvml" ]; then
        for part in $parts; do targets+=("build/$part"); done
        if flock build/.native.lock make --no-print-directory -s -j"$(nproc)" "${targets[@]}" \
            CUDA_INC="$cuda" NVML_INC="$nvml" >build/gpu-build.log 2>&1; then return; fi
        echo "make gpu: the native parts did not build (build/gpu-build.log):" >&2
        tail -n 5 build/gpu-build.log >&2
    fi
    for part in $parts; do
        if [ ! -e "$bundle/native/$part" ]; then
            echo "make gpu: no compiler that works here," \
                "and build/gpu-bundle/native/$part is not there" >&2
            exit 2
        fi
        mkdir -p "build/$(dirname "$part")"
        cp "$bundle/native/$part" "build/$part"
    done
    echo "make gpu: using the parts that were built elsewhere"
}

find_python
build
exec "${python:-python3}" -m bench.gpu "$@"
