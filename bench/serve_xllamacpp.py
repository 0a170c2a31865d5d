"""Serve a GGUF file with llama.cpp's server as the ``xllamacpp`` wheel packages it, until a signal ends it.

PEERS/xllamacpp/venv/bin/python bench/serve_xllamacpp.py FILE.gguf --port PORT
"""

import argparse
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=512)
    parser.add_argument("--flash-attention", choices=("on", "off", "auto"), default="on")
    arguments = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.port = arguments.port
    params.n_ctx = arguments.context
    params.n_parallel = arguments.parallel
    params.n_batch = 2048
    params.n_ubatch = arguments.micro_batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.cont_batching = True
    params.kv_unified = True
    # Prompts of other repeats must not come back from a cache in memory.
    params.cache_ram_mib = 0
    params.fit_params = False
    flash = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[arguments.flash_attention]
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{flash}")
    # The server lives as long as this object.
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
