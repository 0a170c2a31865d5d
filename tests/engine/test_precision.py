"""What settings of dtypes and quantisation mean on a device, and what is refused."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from pageport.backend import Capabilities
from pageport.config import KV_CACHE_DTYPES, EngineConfig
from pageport.engine.builder import build_engine_on, open_model
from pageport.engine.precision import Precision, choose_precision
from pageport.errors import ConfigurationError, UnsupportedFeature
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.tiny_model import write_tiny_llama

ABLE = Capabilities(
    compute_dtypes=("float32", "float16"),
    weight_schemes=("q4_1", "bf16"),
    quantisations=("int8", "int4"),
    quantises_activations=True,
)


def choose(stored_scheme: str = "f32", capabilities: Capabilities = ABLE, **settings: str) -> Precision:
    return choose_precision(EngineConfig.from_flat(**settings), stored_scheme, capabilities)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("auto", "float16"),
        ("float32", "float32"),
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("fp8", "float8_e4m3fn"),
        ("fp8_e4m3", "float8_e4m3fn"),
        ("fp8_e5m2", "float8_e5m2"),
        ("int8", "int8"),
    ],
)
def test_cache_dtypes_have_the_names_people_use(asked, expected):
    assert choose(dtype="float16", kv_cache_dtype=asked).kv_dtype == expected


def test_every_listed_cache_dtype_is_taken():
    assert len({choose(dtype="float16", kv_cache_dtype=name).kv_dtype for name in KV_CACHE_DTYPES[1:]}) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_dtype": "fp4"}, r"--kv-cache-dtype is 'fp4'; use one of auto, float32, .*, fp8_e4m3, .*, int8\."),
        ({"quantization": "awq"}, r"--quantization is 'awq'; it takes int8, int4, which quantise any checkpoint"),
        ({"quantization": "gguf"}, r"A GGUF file needs no setting"),
    ],
)
def test_unknown_names_are_refused_with_those_there_are(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        choose(**settings)


@pytest.mark.parametrize(("done", "listed"), [((), "none"), (("int8",), "int8")])
def test_a_quantisation_the_device_does_not_do_is_refused(done, listed):
    with pytest.raises(
        UnsupportedFeature, match=rf"--quantization int4 is not done by this device; it does {listed}\."
    ):
        choose(capabilities=Capabilities(quantisations=done), quantization="int4")


@pytest.mark.parametrize(
    ("settings", "dequantise", "quantisation"),
    [
        ({}, False, None),
        ({"dtype": "float32"}, True, None),
        ({"quantization": "none", "dtype": "float32"}, True, None),
        ({"quantization": "int4"}, False, "int4"),
        ({"quantization": "int8", "dtype": "float32"}, False, "int8"),
    ],
)
def test_quantisation_is_of_matrices_and_dtype_of_the_rest(settings, dequantise, quantisation):
    precision = choose(**settings)
    assert (precision.dequantise, precision.quantisation) == (dequantise, quantisation)
    assert precision.compute_dtype == "float32"


@pytest.mark.parametrize(
    ("scheme", "settings", "expected"),
    [
        ("q4_1", {}, "weights kept as q4_1, activations quantised to int8 (--dtype float32 turns both off)"),
        ("bf16", {}, "weights kept as bf16"),
        ("q8_0", {}, "q8_0 weights computed as float32"),
        ("q4_1", {"dtype": "float32"}, "q4_1 weights computed as float32"),
        ("bf16", {"quantization": "int8"}, "bf16 weights quantised to int8, activations quantised to int8"),
        (
            "f32",
            {"quantization": "int4"},
            "f32 weights quantised to int4 (embedding and head int8), activations quantised to int8",
        ),
    ],
)
def test_the_start_up_line_says_what_becomes_of_weights(scheme, settings, expected):
    assert choose(scheme, **settings).describe_weights(scheme, ABLE) == expected


def build(folder, **settings):
    config = EngineConfig.from_flat(model=str(folder), **settings)
    return build_engine_on(ReferenceDevice(), open_model(config.model), config, backend_name="test")


def num_blocks(folder, **settings) -> int:
    # Memory is what is short: more sequences than fit.
    built = build(folder, max_num_seqs=100_000, **settings)
    built.close()
    return built.info.num_blocks[0]


def test_a_cache_of_bytes_holds_four_times_the_blocks_of_float32(tmp_path):
    folder = write_tiny_llama(tmp_path, head_dim=32)
    wide, narrow = (num_blocks(folder, kv_cache_dtype=name) for name in ("auto", "fp8"))
    assert narrow == pytest.approx(4 * wide, abs=4)
    # 32 bytes and a float32 scale instead of 128.
    assert num_blocks(folder, kv_cache_dtype="int8") == pytest.approx(128 / 36 * wide, abs=4)


def test_the_start_up_line_names_the_caches_dtype(tmp_path):
    built = build(write_tiny_llama(tmp_path), kv_cache_dtype="fp8")
    built.close()
    assert any(line.startswith("cache    float8_e4m3fn, ") for line in built.info.summary)


def test_a_cache_dtype_that_is_not_declared_is_refused_before_weights_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("pageport.engine.builder.load_decoder_weights", pytest.fail)
    with pytest.raises(UnsupportedFeature, match="KV dtype bfloat16; it does float32, float8_e4m3fn"):
        build(write_tiny_llama(tmp_path), kv_cache_dtype="bf16")


class NotesQuantisations(ReferenceDevice):
    """Says that it quantises, and notes what it is asked to."""

    def __init__(self) -> None:
        self.asked: dict[str, str | None] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(quantisations=("int8", "int4"))

    def prepare_weight(self, spec, parts):
        self.asked[spec.name] = spec.quantisation
        return SimpleNamespace(spec=spec)


def asked(folder, **overrides) -> Mapping[str, str | None]:
    device = NotesQuantisations()
    config = EngineConfig.from_flat(model=str(write_tiny_llama(folder, **overrides)), quantization="int4")
    build_engine_on(device, open_model(config.model), config, backend_name="test").close()
    return device.asked


@pytest.mark.parametrize("is_tied", [True, False])
def test_four_bits_spare_the_embedding_and_the_head(tmp_path, is_tied):
    quantisations = asked(tmp_path, tie_word_embeddings=is_tied)
    vocabulary = {"model.embed_tokens.weight"} | (set() if is_tied else {"lm_head.weight"})
    assert {name for name, quantisation in quantisations.items() if quantisation == "int8"} == vocabulary
    assert {quantisations[name] for name in quantisations.keys() - vocabulary} == {"int4"}
    assert len(quantisations) == len(vocabulary) + 2 * 4
