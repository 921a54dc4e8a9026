"""Training on a few hundred labelled rows, as the quickstart does.

Run: python -m launch.train --data=runs/label/supervision --config=experiments/train_default.py \
    --out=runs/train
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "steps": 48,
            "warmup_steps": 4,
            "batch_size": 4,  # Groups (questions with their documents) per step.
            "learning_rate": 1e-4,
        }
    )
