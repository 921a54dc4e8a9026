"""Adapters against PyTorch and PEFT, both ways: the same files, the same features, one merge."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibjax.backbone import decoder as passes
from calibjax.backbone import load_decoder, lora, peft_files
from tests.backbone import checkpoints

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

pytestmark = pytest.mark.torch

# The bar for interchange: 1e-5 of the feature's norm, in float32 through two blocks.
RELATIVE = 1e-5
LENGTHS = (3, 17, 60)
FAMILIES = {"llama": {}, "qwen2": {"model_type": "qwen2"}, "phi3": checkpoints.FAMILIES["phi3"]}
_features = jax.jit(passes.features)


@pytest.fixture(autouse=True)
def _a_renamed_property(_warnings_are_errors):
    """PEFT reads one that transformers has renamed."""
    message = "`is_gradient_checkpointing`"
    warnings.filterwarnings("ignore", category=FutureWarning, message=message)


@pytest.fixture(params=FAMILIES)
def base(request, tmp_path):
    """A directory of weights, ours and theirs loaded from it."""
    import transformers

    fields = checkpoints.config(**FAMILIES[request.param])
    directory = checkpoints.save(tmp_path / "base", fields, checkpoints.tensors(fields))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
    return load_decoder(directory), model.eval()


def trained(config, **options):
    adapter = lora.Adapter(config, key=jax.random.key(1), **options)
    for number, name in enumerate(adapter.targets):
        pair = getattr(adapter, name)
        pair.b[...] = 0.2 * jax.random.normal(jax.random.key(number), pair.b.shape, jnp.float32)
    return adapter


def assert_same_features(decoder, adapter, model):
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, decoder.config.vocab_size, (len(LENGTHS), max(LENGTHS) + 4))
    ids, lengths = jnp.asarray(tokens, jnp.int32), jnp.asarray(LENGTHS, jnp.int32)
    ours = np.asarray(_features(decoder.module, ids, lengths, adapter=adapter))
    plain = np.asarray(decoder.features(tokens, np.array(LENGTHS)))
    for row, length in enumerate(LENGTHS):
        with torch.no_grad():
            out = model(torch.from_numpy(tokens[row : row + 1, :length]), output_hidden_states=True)
        theirs = out.hidden_states[-2][0, -1].numpy()
        error = np.linalg.norm(ours[row] - theirs) / np.linalg.norm(theirs)
        assert error <= RELATIVE, (length, error)
        # The adapter matters: nothing was lost on the way.
        assert np.linalg.norm(plain[row] - theirs) > 1e-2 * np.linalg.norm(theirs)


@pytest.mark.parametrize("options", [{"targets": "q_proj|v_proj"}, {"targets": ".*", "rank": 3}])
def test_an_adapter_of_ours_gives_the_same_features_in_peft(base, options, tmp_path):
    decoder, model = base
    adapter = trained(decoder.config, rslora="rank" in options, **options)
    peft_files.write_adapter(tmp_path, adapter, decoder.config, base_model=decoder.source)
    # Missing or unexpected keys would be warned of, and warnings are errors here.
    theirs = peft.PeftModel.from_pretrained(model, tmp_path).eval()
    assert_same_features(decoder, adapter, theirs)
    again = peft_files.read_adapter(tmp_path, decoder.config)
    assert_same_features(decoder, again, theirs)


def test_an_adapter_trained_by_peft_gives_the_same_features_here(base, tmp_path):
    decoder, model = base
    fused = decoder.config.model_type == "phi3"
    targets = ["qkv_proj", "down_proj"] if fused else ["q_proj", "v_proj", "down_proj"]
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules=targets, use_rslora=True
    )
    theirs = peft.get_peft_model(model, settings)
    optimizer = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=0.05)
    tokens = torch.randint(3, 259, (2, 20), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        theirs(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    theirs.eval().save_pretrained(tmp_path)
    # All blocks were adapted; the last one's adapter has no part in the features.
    adapter = peft_files.read_adapter(tmp_path, decoder.config)
    assert (adapter.rank, adapter.scale) == (4, 6.0)
    assert_same_features(decoder, adapter, theirs)


def test_names_and_settings_are_those_that_peft_writes(base, tmp_path):
    decoder, model = base
    adapter = trained(decoder.config, targets=".*")
    peft_files.write_adapter(tmp_path / "ours", adapter, decoder.config, base_model=decoder.source)
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    read = {}
    for who in ("ours", "theirs"):
        file = peft_files.SafetensorsFile(tmp_path / who / peft_files.WEIGHTS)
        read[who] = {name: file.read(name) for name in file.shapes}
    assert set(read["ours"]) == set(read["theirs"])
    for name, value in read["ours"].items():
        np.testing.assert_array_equal(value, read["theirs"][name])
    ours, written = (
        json.loads((tmp_path / who / peft_files.CONFIG).read_text()) for who in ("ours", "theirs")
    )
    assert set(ours) <= set(written)


def test_merged_weights_are_those_that_peft_merges(base, tmp_path):
    decoder, model = base
    adapter = trained(decoder.config, targets=".*")
    peft_files.write_adapter(tmp_path, adapter, decoder.config, base_model=decoder.source)
    merged = lora.merge(decoder.module, adapter)
    theirs = peft.PeftModel.from_pretrained(model, tmp_path).merge_and_unload()
    for block in range(decoder.config.num_layers - 1):
        down = theirs.model.layers[block].mlp.down_proj.weight.detach().numpy()
        ours = np.asarray(merged.blocks.mlp.down_proj.kernel[...][block]).T
        np.testing.assert_allclose(ours, down, rtol=1e-5, atol=1e-6)
