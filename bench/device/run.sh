#!/usr/bin/env bash
# Check and time the CUDA backend on a machine with an NVIDIA GPU and only torch, triton and transformers:
#
#     bash bench/device/run.sh [--dry]
#
# `make device-wheel` has put the wheels beside this file. Every part has its time, writes results as they come into
# $OUT (default: build/device), and leaves the others alone when it fails. --dry runs all of it small, on the CPU.
# PYTHON names another interpreter, WHEELS another folder; without wheels what is installed is used.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-$here/../../build/device}
mkdir -p "$OUT"
python=${PYTHON:-python3}
wheels=${WHEELS:-$here/wheels}
dry=${1:-}
if compgen -G "$wheels/*.whl" >/dev/null; then
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --target "$packages" "$wheels"/*.whl || exit 1
    export PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}"
fi
# Kernels are compiled anew, so that the time this takes shows.
export TRITON_CACHE_DIR=$OUT/triton-cache TOKENIZERS_PARALLELISM=false
rm -rf "$TRITON_CACHE_DIR"

part() { # name, seconds
    echo "== $1 (at most $2 s)"
    timeout --kill-after 5 "$2" "$python" "$here/$1.py" $dry >"$OUT/$1.log" 2>&1
    local status=$?
    tail -n 5 "$OUT/$1.log"
    [ "$status" -eq 0 ] || echo "{\"exit status\": $status}" >"$OUT/$1.exit.json"
}

rm -f "$OUT"/*.json
part check_models 50
part time_attention 45
part time_llama 60
part time_mixed_run 75
part check_conformance 68
"$python" "$here/report.py"
