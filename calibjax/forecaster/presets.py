"""The three presets: what the paper prints, what its code does, and what we advise."""

from dataclasses import dataclass, replace

from calibjax.errors import closest, input_error
from calibjax.forecaster.losses import NUM_CLASSES

METHODS = ("calibrag", "calibrag_multi", "calibrag_no_temperature")


@dataclass(frozen=True, slots=True)
class Preset:
    """Everything that defines a forecaster and its training, apart from data and seed."""

    name: str
    # Model. head: "linear" or "mlp" (256-128-64). fourier: None leaves the temperature out.
    head: str
    num_outputs: int
    last_bias: bool
    fourier: str | None
    num_frequencies: int
    t_min: float
    t_max: float
    layer: int  # -2 = residual stream after the last block but one, without final norm
    bos: str  # "single", or "double" as the authors' tokenisation has it
    max_document_tokens: int
    standardize: bool  # centre and scale features by constants of the training rows
    # LoRA; rank 0 trains a head on frozen features.
    lora_rank: int
    lora_alpha: float
    lora_targets: str
    lora_dropout: float
    adapter_at_guidance: bool  # True: guidance at test time is written with the adapter on
    # Optimisation. batch_size counts groups.
    group_by: str  # "row", or "question": documents of a query share its prefix
    learning_rate: float
    batch_size: int
    accumulation: int
    steps: int
    schedule: str
    warmup_steps: int
    weight_decay: float
    clip_norm: float
    balanced_classes: bool  # weights of the 11-class loss
    # Before the rest, on features of the frozen decoder: the head is set to a ridge logistic
    # regression, then W_p and head are trained on all rows at once for `head_warmup_steps`.
    ridge_start: bool
    head_warmup_steps: int
    head_learning_rate: float
    head_weight_decay: float
    num_evaluations: int  # validations (and checkpoints) in a run


_PAPER = Preset(
    name="paper",
    head="linear",
    num_outputs=1,
    last_bias=True,
    fourier="paper",
    num_frequencies=6,
    t_min=1.0,
    t_max=2.0,
    layer=-2,
    bos="single",
    max_document_tokens=512,
    standardize=False,
    lora_rank=8,
    lora_alpha=16.0,
    lora_targets="q_proj|v_proj",
    lora_dropout=0.1,
    adapter_at_guidance=False,
    group_by="row",
    learning_rate=1e-4,
    batch_size=4,
    accumulation=1,
    steps=10_000,
    schedule="linear",
    warmup_steps=500,
    weight_decay=0.01,
    clip_norm=1.0,
    balanced_classes=False,
    ridge_start=False,
    head_warmup_steps=0,
    head_learning_rate=1e-4,
    head_weight_decay=0.01,
    num_evaluations=10,
)

PRESETS = {
    "paper": _PAPER,
    "code": replace(
        _PAPER,
        name="code",
        head="mlp",
        num_outputs=2,
        last_bias=False,
        fourier="code",
        bos="double",
        lora_alpha=32.0,
        adapter_at_guidance=True,
        batch_size=2,
        accumulation=2,
        steps=20_000,
        schedule="cosine",
        warmup_steps=0,
        weight_decay=0.0,
        balanced_classes=True,
    ),
    "fixed": replace(
        _PAPER,
        name="fixed",
        head="mlp",
        fourier="fixed",
        standardize=True,
        group_by="question",
        ridge_start=True,
    ),
}


def get_preset(preset: str | Preset, method: str = "calibrag") -> Preset:
    """The preset of that name (or the given one), turned into `method`'s variant of it."""
    if isinstance(preset, str):
        if preset not in PRESETS:
            near = closest(preset, PRESETS)
            fix = None if near is None else f"did you mean {near}"
            raise input_error("preset", preset, ", ".join(PRESETS), fix)
        preset = PRESETS[preset]
    if method == "calibrag_multi":
        return replace(preset, num_outputs=NUM_CLASSES)
    if method == "calibrag_no_temperature":
        return replace(preset, fourier=None)
    if method != "calibrag":
        near = closest(method, METHODS)
        fix = None if near is None else f"did you mean {near}"
        raise input_error("method", method, ", ".join(METHODS), fix)
    return preset
