"""Write one GGUF file's model in the formats that other engines read.

    python bench/convert_model.py gguf IN.gguf OUT.gguf --type F32|F16|BF16|Q8_0
    python bench/convert_model.py hf IN.gguf FOLDER [--dtype float32]
    python bench/convert_model.py openvino HF_FOLDER FOLDER [--weights fp32|fp16|int8|int4]

``gguf`` needs the gguf package, ``hf`` the transformers peer's environment, ``openvino`` the OpenVINO peer's.
``bench/peers.sh models`` makes them all. Every format holds the values of the given file, rounded to its own type.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

# What general.file_type says of each type.
FILE_TYPES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16", "Q8_0": "MOSTLY_Q8_0"}


def write_gguf(source: Path, target: Path, type_name: str) -> None:
    """Rewrite a GGUF file with every matrix in another type; vectors become float32."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    wanted = gguf.GGMLQuantizationType[type_name]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        # The writer makes the header and the architecture itself.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = field.contents()
        if name == "general.file_type":
            value = int(gguf.LlamaFileType[FILE_TYPES[type_name]])
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, value, field.types[0], sub_type=field.types[1] if is_array else None)
    for tensor in reader.tensors:
        values = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if values.ndim < 2 or wanted == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, values)
        elif wanted == gguf.GGMLQuantizationType.F16:
            writer.add_tensor(tensor.name, values.astype(np.float16))
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hf_folder(source: Path, target: Path, dtype: str) -> None:
    """Write config, safetensors and tokenizer of a GGUF file, its weights dequantised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=getattr(torch, dtype))
    # transformers marks what came from a GGUF file as quantised and refuses to save it, though it is plain by now.
    model.hf_quantizer = None
    for name in ("quantization_config", "_pre_quantization_dtype"):
        model.config.__dict__.pop(name, None)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def write_openvino_folder(source: Path, target: Path, weights: str) -> None:
    """Export a Hugging Face folder, model and tokenizer, to OpenVINO's format."""
    from optimum.commands.optimum_cli import main as optimum_cli

    sys.argv = ["optimum-cli", "export", "openvino", "--model", str(source), "--task", "text-generation-with-past"]
    sys.argv += ["--weight-format", weights, str(target)]
    optimum_cli()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    formats = parser.add_subparsers(dest="format", required=True)
    for name in ("gguf", "hf", "openvino"):
        one = formats.add_parser(name)
        one.add_argument("source", type=Path)
        one.add_argument("target", type=Path)
        if name == "gguf":
            one.add_argument("--type", choices=sorted(FILE_TYPES), required=True)
        elif name == "hf":
            one.add_argument("--dtype", default="float32")
        else:
            one.add_argument("--weights", choices=("fp32", "fp16", "int8", "int4"), default="fp32")
    arguments = parser.parse_args()
    if arguments.format == "gguf":
        write_gguf(arguments.source, arguments.target, arguments.type)
    elif arguments.format == "hf":
        write_hf_folder(arguments.source.resolve(), arguments.target, arguments.dtype)
    else:
        write_openvino_folder(arguments.source, arguments.target, arguments.weights)


if __name__ == "__main__":
    main()
