"""The other side of the benchmarks: the same model in transformers + PEFT."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calibjax.backbone import peft_files, weights
from calibjax.backbone.config import DecoderConfig
from calibjax.backbone.load import Decoder
from calibjax.backbone.lora import Adapter
from calibjax.errors import InputError
from calibjax.forecaster.fourier import fourier_features
from calibjax.forecaster.model import ForecastModel
from calibjax.forecaster.presets import Preset

try:
    import peft
    import torch
    import transformers
except ImportError as error:
    raise InputError(f"{error.name}: not installed; fix: pip install '.[parity]'") from None


def config_fields(config: DecoderConfig) -> dict[str, Any]:
    """config.json of a decoder without scaled frequencies or multipliers."""
    return {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
    }


def stored_tensors(decoder: Decoder) -> dict[str, np.ndarray]:
    """The decoder's parameters under their Hugging Face names and in that order of axes."""
    named = {}
    last = decoder.config.num_layers - 1
    for keys, leaf in jax.tree_util.tree_flatten_with_path(decoder.module)[0]:
        path = jax.tree_util.keystr(keys, simple=True, separator=".").removesuffix(".value")
        room, _, inner = path.partition(".")
        value = np.array(leaf)
        if room not in ("blocks", "last_block"):
            named[weights.HUGGING_FACE.name(path, None)] = value
            continue
        rows = value if room == "blocks" else value[None]
        for number, row in enumerate(rows, start=0 if room == "blocks" else last):
            turned = np.ascontiguousarray(row.T if inner.endswith("kernel") else row)
            named[weights.HUGGING_FACE.name(inner, number)] = turned
    return named


def load(decoder: Decoder, *, attention: str = "sdpa") -> Any:
    """The same decoder as a transformers model, float32, in evaluation mode."""
    config = transformers.AutoConfig.for_model(**config_fields(decoder.config))
    config._attn_implementation = attention
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    state = {name: torch.from_numpy(value) for name, value in stored_tensors(decoder).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if set(missing) > {"lm_head.weight"} or unexpected:
        raise RuntimeError(f"weights do not fit: {missing} {unexpected}")
    model.tie_weights()
    return model


def with_adapter(model: Any, decoder: Decoder, adapter: Adapter, *, trainable: bool) -> Any:
    """The model with our adapter on it, through PEFT's own loader."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        peft_files.write_adapter(path, adapter, decoder.config, base_model=directory)
        return peft.PeftModel.from_pretrained(model, path, is_trainable=trainable)


def features(model: Any, sequences: Sequence[Sequence[int]]) -> Any:
    """`hidden_states[-2]` at each last token, [N, D]; padded to the longest of the sequences."""
    longest = max(map(len, sequences))
    ids = torch.zeros((len(sequences), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    out = model(
        input_ids=ids,
        attention_mask=mask,
        output_hidden_states=True,
        logits_to_keep=1,
        use_cache=False,
    )
    return out.hidden_states[-2][torch.arange(len(sequences)), mask.sum(dim=1) - 1]


class Head(torch.nn.Module):
    """Temperature code and head of a forecaster with one output."""

    def __init__(self, model: ForecastModel, preset: Preset) -> None:
        super().__init__()
        self.preset = preset
        self.mean, self.scale = tensor(model.mean[...]), tensor(model.scale[...])
        assert model.temperature_kernel is not None
        self.code = torch.nn.Linear(*model.temperature_kernel.shape, bias=False)
        self.code.weight.data = tensor(model.temperature_kernel[...]).T.contiguous()
        layers: list[Any] = []
        for kernel, bias in zip(model.head.kernels, model.head.biases, strict=True):
            layers += [torch.nn.Linear(*kernel.shape), torch.nn.ReLU()]
            layers[-2].weight.data = tensor(kernel[...]).T.contiguous()
            layers[-2].bias.data = tensor(bias[...])
        self.layers = torch.nn.Sequential(*layers[:-1])

    def forward(self, feature: Any, temperature: np.ndarray) -> Any:
        """Logits [..., M] of features [..., D] at temperatures [..., M]."""
        preset = self.preset
        assert preset.fourier is not None
        code = fourier_features(
            temperature,
            num_frequencies=preset.num_frequencies,
            t_min=preset.t_min,
            t_max=preset.t_max,
            variant=preset.fourier,
        )
        x = ((feature - self.mean) / self.scale)[..., None, :] + self.code(tensor(code))
        return self.layers(x)[..., 0]


def tensor(value: Any) -> Any:
    return torch.from_numpy(np.array(value, np.float32))


def optimizer(parameters: Sequence[Any], preset: Preset) -> tuple[Any, Any]:
    """AdamW as the preset has it, biases without decay, and its learning-rate schedule."""
    groups: list[Mapping[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": preset.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=preset.learning_rate)
    falling = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: 1 - step / preset.steps)
    return adamw, falling
