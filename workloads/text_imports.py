"""Everything that `train_text` imports, in one module: what a fork server loads for it (docs/warm_start.md)."""

from workloads.text import models, text_data
from workloads.training import recipes, run

models.load()

__all__ = ["models", "recipes", "run", "text_data"]
